// CUDA's kernels on a CPU: the threads of a block are fibers, of which each runs to its next barrier. Reads one call from the
// standard input, and writes what the kernel wrote: the arguments in text, then arrays as they lie in memory.
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define __device__
#define __global__
#define __shared__ static

struct Index {
  unsigned x;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

static unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}
static float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static float __half_bits_to_float(unsigned short bits) {
  _Float16 x;
  memcpy(&x, &bits, 2);
  return x;
}
static unsigned short __float_to_half_bits(float wide) {
  _Float16 x = wide;
  unsigned short bits;
  memcpy(&bits, &x, 2);
  return bits;
}

static ucontext_t host;
static std::vector<ucontext_t> fibers;
static unsigned running;

static void __syncthreads() { swapcontext(&fibers[running], &host); }

#include "kernels.cu"

static std::function<void()> kernel;
static std::vector<char> ended;

static void fiber() {
  kernel();
  ended[running] = 1;
  swapcontext(&fibers[running], &host);
}

// Every thread of a block up to its next barrier, then the next round: forward or backward, which must not matter.
static void launch(unsigned blocks, unsigned threads, bool backward) {
  const size_t stack = 64 * 1024;
  std::vector<char> stacks(stack * threads);
  gridDim = {blocks};
  blockDim = {threads};
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
    fibers.assign(threads, {});
    ended.assign(threads, 0);
    for (unsigned i = 0; i < threads; i++) {
      getcontext(&fibers[i]);
      fibers[i].uc_stack.ss_sp = &stacks[stack * i];
      fibers[i].uc_stack.ss_size = stack;
      makecontext(&fibers[i], fiber, 0);
    }
    for (unsigned left = threads; left > 0;) {
      unsigned arrived = 0;
      for (unsigned i = 0; i < threads; i++) {
        running = backward ? threads - 1 - i : i;
        if (ended[running]) continue;
        threadIdx = {running};
        swapcontext(&host, &fibers[running]);
        if (ended[running]) left--;
        else arrived++;
      }
      if (arrived && arrived != threads) {
        fprintf(stderr, "%u of %u threads wait at a barrier\n", arrived, threads);
        exit(1);
      }
    }
  }
}

// An array with a border of NaN, to which a kernel must not write, nor read it.
template <typename T> struct Array {
  static const size_t border = 64;
  std::vector<unsigned char> bytes;
  size_t n;
  explicit Array(size_t n) : bytes(sizeof(T) * n + 2 * border, 0xff), n(n) {}
  static Array read(size_t n) {
    Array a(n);
    if (fread(a.data(), sizeof(T), n, stdin) != n) exit(2);
    return a;
  }
  T *data() { return (T *)&bytes[border]; }
  void write() {
    for (size_t i = 0; i < border; i++)
      if (bytes[i] != 0xff || bytes[bytes.size() - 1 - i] != 0xff) {
        fprintf(stderr, "written outside of an array\n");
        exit(1);
      }
    fwrite(data(), sizeof(T), n, stdout);
  }
};

static long long integer() {
  long long x;
  if (scanf("%lld", &x) != 1) exit(2);
  return x;
}
static double number() {
  double x;
  if (scanf("%la", &x) != 1) exit(2);
  return x;
}
static void line() {
  if (getchar() != '\n') exit(2);
}

template <typename T> static void norm(bool backward) {
  const long long rows = integer(), width = integer();
  const double eps = number();
  const int statistic = integer(), gain = integer();
  const bool with_residual = integer(), with_bias = integer();
  line();
  auto x = Array<T>::read(rows * width), residual = Array<T>::read(with_residual ? rows * width : 0);
  auto weight = Array<T>::read(width), bias = Array<T>::read(with_bias ? width : 0);
  Array<T> sum(residual.n), y(rows * width);
  kernel = [&] {
    norm_row<T>(x.data(), with_residual ? residual.data() : nullptr, weight.data(), with_bias ? bias.data() : nullptr,
                sum.data(), y.data(), width, eps, statistic, gain);
  };
  launch(rows, THREADS, backward);
  sum.write();
  y.write();
}

template <typename T> static void adamw(bool backward) {
  const long long n = integer();
  const double scale = number(), keep = number(), beta2 = number(), first_weight = number();
  const int from_gradient = integer();
  const double second_weight = number(), second_root = number(), eps = number(), step_size = number();
  line();
  auto parameter = Array<T>::read(n), gradient = Array<T>::read(n);
  auto moments = Array<typename Wide<T>::type>::read(2 * n);
  kernel = [&] {
    adamw_step<T>(parameter.data(), gradient.data(), moments.data(), n, scale, keep, beta2, first_weight, from_gradient,
                  second_weight, second_root, eps, step_size);
  };
  launch(3, THREADS, backward);
  parameter.write();
  moments.write();
}

template <typename T> static void called(const std::string &name, bool backward) {
  if (name == "norm") norm<T>(backward);
  else adamw<T>(backward);
}

int main(int, char **arguments) {
  const std::string name = arguments[1], type = arguments[2];
  const bool backward = std::string(arguments[3]) == "backward";
  if (type == "f32") called<float>(name, backward);
  else if (type == "f64") called<double>(name, backward);
  else if (type == "f16") called<f16>(name, backward);
  else called<bf16>(name, backward);
}
