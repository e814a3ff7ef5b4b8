//! Thread teams, which stay awake between the steps in one computation.
//!
//! Waking a sleeping thread costs about 10 µs, as much as a small product. A team is started once for a whole
//! forward pass. Between its steps (each one [`for_tasks`](super::for_tasks)) the helpers spin. Nothing ever waits
//! for a helper that has not arrived: the leader can do every step alone. A busy pool therefore makes a team slow,
//! but never stuck, and a pass ends when its work is done, whatever else the pool does.
//!
//! Each member begins with its own share of a step's tasks, the same share in every step, so that rows written in
//! one step are still in its cache in the next. Then it takes the remaining tasks in other shares.
//!
//! ```text
//! leader   write work, tasks, next → open = true → take tasks → open = false → wait for active == 0 → next step
//! helper   open? → active += 1 → still open? → read work, take tasks → active -= 1
//! ```

use std::{
    any::Any,
    cell::{Cell, UnsafeCell},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    ptr,
    sync::{
        Arc, PoisonError,
        atomic::{self, Ordering::SeqCst},
    },
};

use super::primitives::{
    AtomicBool, AtomicUsize, Mutex, has_pool, hint, spawn, thread, thread_local,
};

/// A step's work, called with task indices. It borrows from the leader's stack.
type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// The state that the leader and its helpers share.
struct Team {
    /// The current step's work. Valid while `open`, and then until `active` is 0.
    work: UnsafeCell<Option<Work<'static>>>,
    tasks: AtomicUsize,
    /// The next task in each member's share.
    next: Box<[CachePadded]>,
    /// True if a helper may begin to take tasks.
    open: AtomicBool,
    /// Helpers that read `work`, or are about to see that they may not.
    active: AtomicUsize,
    /// True if the leader is done, so that there is no further step.
    closed: AtomicBool,
    /// The payload from a panic in a helper's task.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A counter on its own cache lines. 128 bytes, because some CPUs prefetch lines in pairs.
#[repr(align(128))]
struct CachePadded(AtomicUsize);

// SAFETY: only the leader writes `work`, and only while `open` is false and `active` is 0. Helpers read it only
// after they raised `active` and then saw `open`: either the leader sees the raised `active` and waits, or the
// helper sees that `open` is false. That needs a single total order of these four accesses, so all four are
// sequentially consistent.
unsafe impl Sync for Team {}

thread_local! {
    /// The team that this thread leads; null within a step.
    static LED: Cell<*const Team> = const { Cell::new(ptr::null()) };
    /// True if this thread is running a team's task.
    static IN_STEP: Cell<bool> = const { Cell::new(false) };
}

/// Helpers in all teams that no pool has started yet. Not part of a team's model.
static WAITING: atomic::AtomicUsize = atomic::AtomicUsize::new(0);

/// The maximum count of waiting helpers. A pool that is busy, or whose threads did not survive a fork, would
/// otherwise collect a helper, and its team, for every pass.
const MAX_WAITING: usize = 1 << 10;

/// Returns whether the calling thread leads a team.
pub fn is_here() -> bool {
    !LED.with(Cell::get).is_null()
}

/// Runs `work`. A single team with at most `threads` threads runs all its tasks.
///
/// `work` should not wait for the rayon pool that it runs in, because helpers occupy that pool's workers until it
/// ends.
///
/// With one thread, or within another team's step, there is no team. Within another team's `work`, that team is
/// used.
pub fn with_team<R>(threads: usize, work: impl FnOnce() -> R) -> R {
    let team = Team::called(threads);
    let _led = team.as_deref().map(Led::new);
    work()
}

/// Runs one step with the team that this thread leads, or alone if it leads none.
pub fn step(tasks: usize, work: Work) {
    let team = LED.with(Cell::get);
    // SAFETY: `LED` is not null only while `with_team` keeps the team alive.
    match unsafe { team.as_ref() } {
        Some(team) => team.step(tasks, work),
        None => (0..tasks).for_each(work),
    }
}

impl Team {
    /// Starts a team with `threads` threads. Returns `None` if one thread is enough, the calling thread is within a
    /// team, or the system has no threads.
    fn called(threads: usize) -> Option<Arc<Self>> {
        if threads <= 1 || is_here() || IN_STEP.with(Cell::get) || !has_pool() {
            return None;
        }
        let counters = (0..threads).map(|_| CachePadded(AtomicUsize::new(0)));
        let team = Arc::new(Self {
            work: UnsafeCell::new(None),
            tasks: AtomicUsize::new(0),
            next: counters.collect(),
            open: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        for member in 1..threads {
            if WAITING.fetch_add(1, SeqCst) >= MAX_WAITING {
                WAITING.fetch_sub(1, SeqCst);
                break;
            }
            let team = team.clone();
            spawn(move || {
                WAITING.fetch_sub(1, SeqCst);
                team.help(member);
            });
        }
        Some(team)
    }

    fn step(&self, tasks: usize, work: Work) {
        // Nested steps run on the calling thread, because the team is busy.
        let _unled = Unled::new();
        // SAFETY: only the lifetime is extended. `_closing` below waits, even in a panic, until no helper holds the
        // reference.
        let work: Work<'static> = unsafe { std::mem::transmute(work) };
        // SAFETY: no step is open and no helper active, because the last step's `Closing` waited for that.
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

    /// Returns the tasks that a member begins with.
    fn share(&self, member: usize, tasks: usize) -> Range<usize> {
        let start = |member: usize| member * tasks / self.next.len();
        start(member)..start(member + 1)
    }

    /// Runs the tasks in the member's own share, and then the remaining ones in other shares.
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

    /// Runs a helper until the team is closed.
    fn help(&self, member: usize) {
        // This thread waits for rayon within a pass of its own, whose leader, helpers or tasks wait for it to
        // return.
        if is_here() || IN_STEP.with(Cell::get) {
            return;
        }
        let mut idle = 0u32;
        while !self.closed.load(SeqCst) {
            if self.open.load(SeqCst) && self.has_tasks() {
                idle = 0;
                self.active.fetch_add(1, SeqCst);
                let _leaving = Leaving(self);
                if self.open.load(SeqCst) {
                    // SAFETY: `active` was raised before `open` was seen, so the leader does not change `work`
                    // until it is lowered.
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
                // Another thread may need this core more, perhaps the leader.
                thread::yield_now();
            }
        }
    }
}

/// Polls before a helper starts to yield its core: about 20 µs.
const SPINS: u32 = 1 << 10;

/// Closes the step when dropped, and waits until no helper is in it.
struct Closing<'a>(&'a Team);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let team = self.0;
        // After a panic, nobody must start the remaining tasks.
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
        if std::thread::panicking() {
            // The leader's own panic is propagating. A helper's panic must not appear in a later step.
            *team.panic.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// Decrements `active` when dropped, also in a panic.
struct Leaving<'a>(&'a Team);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, SeqCst);
    }
}

/// A guard while this thread runs tasks. Nested steps then run on this thread alone.
struct InStep(bool);

impl InStep {
    fn new() -> Self {
        Self(IN_STEP.with(|in_step| in_step.replace(true)))
    }
}

impl Drop for InStep {
    fn drop(&mut self) {
        IN_STEP.with(|in_step| in_step.set(self.0));
    }
}

/// A guard while this thread leads the team. Dropping it closes the team.
struct Led<'a>(&'a Team);

impl<'a> Led<'a> {
    fn new(team: &'a Team) -> Self {
        LED.with(|led| led.set(team));
        Self(team)
    }
}

impl Drop for Led<'_> {
    fn drop(&mut self) {
        LED.with(|led| led.set(ptr::null()));
        self.0.closed.store(true, SeqCst);
    }
}

/// A guard while this thread leads no team.
struct Unled(*const Team);

impl Unled {
    fn new() -> Self {
        Self(LED.with(|led| led.replace(ptr::null())))
    }
}

impl Drop for Unled {
    fn drop(&mut self) {
        LED.with(|led| led.set(self.0));
    }
}

#[cfg(all(test, shuttle))]
mod model;
#[cfg(all(test, not(shuttle)))]
mod tests;
