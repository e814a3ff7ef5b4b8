//! Threads that stay awake between the steps of one computation.
//!
//! To wake a sleeping thread costs some 10 µs, as much as a small product. A team is called together
//! once, for a whole forward pass; between its steps the helpers spin. Nothing ever waits for a helper that has not
//! come: the leader can do every step alone, so a busy pool makes a team slow, never stuck, and a pass ends when its
//! work is done, whatever else the pool does.
//!
//! Each member begins with a share of its own of a step's tasks, the same part of all: what it wrote in one step lies in
//! its cache when it reads the same rows in the next. Then it takes what is left of the others' shares.

use std::{
    any::Any,
    cell::{Cell, UnsafeCell},
    hint,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    ptr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

/// A step's work, which borrows from the leader's stack.
type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// What leader and helpers share.
struct Team {
    /// Valid while `open`, and until `active` is 0 again.
    work: UnsafeCell<Option<Work<'static>>>,
    tasks: AtomicUsize,
    /// The next task of each member's share.
    next: Box<[OwnLine]>,
    /// Whether a helper may begin to take tasks.
    open: AtomicBool,
    /// Helpers that look at `work`, or are about to find out that they may not.
    active: AtomicUsize,
    /// Whether there will be no further step.
    closed: AtomicBool,
    /// What a helper's task panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A counter that shares its cache line with none.
#[repr(align(128))]
struct OwnLine(AtomicUsize);

// SAFETY: `work` is written by the leader alone, and only where `open` is false and `active` is 0; helpers read it
// only after they raised `active` and then saw `open`. All four accesses are sequentially consistent.
unsafe impl Sync for Team {}

thread_local! {
    /// The team that this thread leads, outside its steps.
    static LED: Cell<*const Team> = const { Cell::new(ptr::null()) };
    /// Whether this thread does a team's task.
    static IN_STEP: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread leads a team.
pub fn is_here() -> bool {
    !LED.get().is_null()
}

/// Runs `work`, in which every [`for_tasks`](super::for_tasks) is done by one team of at most `threads` threads.
///
/// Within another team's step, or with one thread, there is none; within another team's `work` it is that team.
pub fn with_team<R>(threads: usize, work: impl FnOnce() -> R) -> R {
    if threads <= 1 || is_here() || IN_STEP.get() {
        return work();
    }
    let team = Arc::new(Team {
        work: UnsafeCell::new(None),
        tasks: AtomicUsize::new(0),
        next: (0..threads).map(|_| OwnLine(AtomicUsize::new(0))).collect(),
        open: AtomicBool::new(false),
        active: AtomicUsize::new(0),
        closed: AtomicBool::new(false),
        panic: Mutex::new(None),
    });
    for member in 1..threads {
        let team = team.clone();
        rayon::spawn(move || team.help(member));
    }
    let _led = Led::new(&team);
    work()
}

/// Does one step with the team that this thread leads.
pub fn run(tasks: usize, work: Work) {
    let team = LED.get();
    // SAFETY: `with_team` keeps the team alive while `LED` points to it.
    match unsafe { team.as_ref() } {
        Some(team) => team.step(tasks, work),
        None => (0..tasks).for_each(work),
    }
}

impl Team {
    fn step(&self, tasks: usize, work: Work) {
        // A step within a step is no business of the team's, which is busy.
        let _unled = Unled::new();
        // SAFETY: only the lifetime changes; `closing` below waits, even in a panic, until nobody holds it.
        let work: Work<'static> = unsafe { std::mem::transmute(work) };
        // SAFETY: no step is open and none is active: the last one's `closing` saw to it.
        unsafe { *self.work.get() = Some(work) };
        self.tasks.store(tasks, SeqCst);
        for (member, next) in self.next.iter().enumerate() {
            next.0.store(self.share(member, tasks).start, SeqCst);
        }
        self.open.store(true, SeqCst);
        {
            let _closing = Closing(self);
            self.take_tasks(work, 0);
        }
        let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(panic) = { panic }.take() {
            resume_unwind(panic);
        }
    }

    /// The tasks that a member begins with.
    fn share(&self, member: usize, tasks: usize) -> Range<usize> {
        let start = |member: usize| member * tasks / self.next.len();
        start(member)..start(member + 1)
    }

    /// Its own, and then those that others have left.
    fn take_tasks(&self, work: Work, member: usize) {
        let _in_step = InStep::new();
        let (tasks, members) = (self.tasks.load(SeqCst), self.next.len());
        for whose in (member..members).chain(0..member) {
            let end = self.share(whose, tasks).end;
            loop {
                let task = self.next[whose].0.fetch_add(1, SeqCst);
                if task >= end {
                    break;
                }
                work(task);
            }
        }
    }

    fn has_tasks(&self) -> bool {
        let tasks = self.tasks.load(SeqCst);
        let mut shares = self.next.iter().enumerate();
        shares.any(|(member, next)| next.0.load(SeqCst) < self.share(member, tasks).end)
    }

    /// What a helper does until the team is closed.
    fn help(&self, member: usize) {
        let mut idle = 0u32;
        while !self.closed.load(SeqCst) {
            if self.open.load(SeqCst) && self.has_tasks() {
                idle = 0;
                self.active.fetch_add(1, SeqCst);
                let _leaving = Leaving(self);
                if self.open.load(SeqCst) {
                    // SAFETY: `active` was raised before `open` was seen, so the leader keeps `work` as it is.
                    if let Some(work) = unsafe { *self.work.get() } {
                        let done = catch_unwind(AssertUnwindSafe(|| self.take_tasks(work, member)));
                        if let Err(panic) = done {
                            let first = self.panic.lock();
                            *first.unwrap_or_else(PoisonError::into_inner) = Some(panic);
                        }
                    }
                }
            } else if idle < SPINS {
                idle += 1;
                hint::spin_loop();
            } else {
                // Somebody else may need this core more, the leader even.
                thread::yield_now();
            }
        }
    }
}

/// Looks for the next step before a helper lets others have its core: some 20 µs.
const SPINS: u32 = 1 << 10;

/// Closes the step, and waits until no helper is in it.
struct Closing<'a>(&'a Team);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let team = self.0;
        // In a panic, nobody begins another task.
        for next in &team.next {
            next.0.store(usize::MAX / 2, SeqCst);
        }
        team.open.store(false, SeqCst);
        let mut waited = 0u32;
        while team.active.load(SeqCst) != 0 {
            waited += 1;
            if waited.is_multiple_of(SPINS) {
                thread::yield_now();
            }
            hint::spin_loop();
        }
    }
}

/// Lowers `active`, in a panic too.
struct Leaving<'a>(&'a Team);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, SeqCst);
    }
}

/// While it lives, this thread does tasks, and what they would divide it does alone.
struct InStep(bool);

impl InStep {
    fn new() -> Self {
        Self(IN_STEP.replace(true))
    }
}

impl Drop for InStep {
    fn drop(&mut self) {
        IN_STEP.set(self.0);
    }
}

/// While it lives, this thread leads the team; then the team is closed.
struct Led<'a>(&'a Team);

impl<'a> Led<'a> {
    fn new(team: &'a Team) -> Self {
        LED.set(team);
        Self(team)
    }
}

impl Drop for Led<'_> {
    fn drop(&mut self) {
        LED.set(ptr::null());
        self.0.closed.store(true, SeqCst);
    }
}

/// While it lives, this thread leads no team.
struct Unled(*const Team);

impl Unled {
    fn new() -> Self {
        Self(LED.replace(ptr::null()))
    }
}

impl Drop for Unled {
    fn drop(&mut self) {
        LED.set(self.0);
    }
}

#[cfg(test)]
mod tests;
