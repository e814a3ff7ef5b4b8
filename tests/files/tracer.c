/* tracer KIND AT PROGRAM ARGS..: runs a program and has one of its system calls on files fail, or kills it there.
 *
 * Calls are counted, in all threads, from the program's stat of "/faults begin" to that of "/faults end". KIND is `count`, which
 * prints to the third descriptor how many there were, and how many of them read or wrote; `kill`; `short`, which has half of
 * what is asked read or written, and counts such calls alone; or a number of errno.
 * For 64-bit x86 on Linux. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static int moves_bytes(long call) {
  return call == SYS_read || call == SYS_pread64 || call == SYS_write || call == SYS_pwrite64;
}

/* Whether a call is on files. Of the descriptors, the standard ones and mappings of no file are left out. */
static int is_on_files(const struct __ptrace_syscall_info *info) {
  const unsigned long *args = (const unsigned long *)info->entry.args;
  switch (info->entry.nr) {
  case SYS_read: case SYS_pread64: case SYS_write: case SYS_pwrite64: case SYS_readv: case SYS_writev: case SYS_lseek:
  case SYS_fsync: case SYS_fdatasync: case SYS_ftruncate: case SYS_fchmod: case SYS_getdents64:
    return args[0] > 2;
  case SYS_mmap:
    return (int)args[4] > 2;
  case SYS_open: case SYS_openat: case SYS_statx: case SYS_newfstatat: case SYS_rename: case SYS_renameat: case SYS_renameat2:
  case SYS_mkdir: case SYS_mkdirat: case SYS_rmdir: case SYS_unlink: case SYS_unlinkat: case SYS_chmod: case SYS_fchmodat:
  case SYS_link: case SYS_linkat: case SYS_copy_file_range: case SYS_readlink: case SYS_readlinkat:
    return 1;
  }
  return 0;
}

static void text_at(pid_t pid, unsigned long address, char *text, size_t size) {
  struct iovec here = {text, size - 1}, there = {(void *)address, size - 1};
  ssize_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);
  text[n > 0 ? n : 0] = 0;
}

int main(int argc, char **argv) {
  if (argc < 4) return 99;
  const char *kind = argv[1];
  long at = atol(argv[2]), n = 0, n_moving = 0;
  pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    execv(argv[3], argv + 3);
    _exit(98);
  }
  int status, armed = 0, code = 97;
  pid_t failing = 0;
  waitpid(child, &status, 0);
  ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
  ptrace(PTRACE_SYSCALL, child, 0, 0);
  for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
    if (!WIFSTOPPED(status)) {
      if (pid == child) code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      continue;
    }
    int deliver = WSTOPSIG(status);
    if (deliver == (SIGTRAP | 0x80)) {
      struct __ptrace_syscall_info info;
      struct user_regs_struct registers;
      deliver = 0;
      ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info);
      ptrace(PTRACE_GETREGS, pid, 0, &registers);
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        char path[32] = "";
        if (info.entry.nr == SYS_statx || info.entry.nr == SYS_newfstatat) text_at(pid, info.entry.args[1], path, sizeof path);
        if (!strcmp(path, "/faults begin")) armed = 1;
        else if (!strcmp(path, "/faults end")) armed = 0;
        else if (armed && is_on_files(&info)) {
          int moves = moves_bytes(info.entry.nr), is_short = !strcmp(kind, "short");
          n += 1;
          n_moving += moves;
          if (is_short ? moves && n_moving == at && registers.rdx > 1 : n == at) {
            if (is_short) registers.rdx /= 2;
            else if (!strcmp(kind, "kill")) kill(child, SIGKILL);
            else if (strcmp(kind, "count")) {
              registers.orig_rax = -1; /* no call */
              failing = pid;
            }
            ptrace(PTRACE_SETREGS, pid, 0, &registers);
          }
        }
      } else if (info.op == PTRACE_SYSCALL_INFO_EXIT && failing == pid) {
        registers.rax = -atol(kind);
        ptrace(PTRACE_SETREGS, pid, 0, &registers);
        failing = 0;
      }
    } else if (deliver == SIGTRAP || deliver == SIGSTOP) {
      deliver = 0; /* a new thread, or the program's begin */
    }
    ptrace(PTRACE_SYSCALL, pid, 0, deliver);
  }
  if (!strcmp(kind, "count")) dprintf(3, "%ld %ld", n, n_moving);
  return code;
}
