//! Wrong clocks: a server sees another time of day than the machine's. Its monotonic clock stays right.
//!
//! Programs ask for the time without a system call: they call functions that the kernel puts into the memory of each
//! process (the vDSO). These functions are replaced there. Debian's libfaketime would not do: programs in Go do not ask
//! the C library, and signal handlers, by which PostgreSQL ends statements, see the right time.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a process may take to stop.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The bytes of a function, with those that fill it up.
const FUNCTION: usize = 32;
/// The bytes of all functions and of the seconds behind them, by which the clock is ahead.
const ALL: u64 = 3 * FUNCTION as u64 + 8;
/// The bytes of a jump.
const JUMP: u64 = 5;

/// The names of the functions, and their machine code for x86-64.
///
/// ```text
///      mov  eax, 228         mov  eax, 96          mov  rdx, rdi
///      syscall               syscall               xor  edi, edi
///      test eax, eax         test rdi, rdi         mov  eax, 201
///      jne  end              je   end              syscall
///      test edi, edi         mov  rcx, [ahead]     add  rax, [ahead]
///      jne  end              add  [rdi], rcx       test rdx, rdx
///      mov  rcx, [ahead]  end: ret                 je   end
///      add  [rsi], rcx                             mov  [rdx], rax
/// end: ret                                    end: ret
/// ```
const FUNCTIONS: [(&[u8], &[u8]); 3] = [
    (
        b"__vdso_clock_gettime",
        &[
            0xb8, 0xe4, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x85, 0xc0, 0x75, 0x0e, 0x85, 0xff, 0x75,
            0x0a, 0x48, 0x8b, 0x0d, 0x4a, 0x00, 0x00, 0x00, 0x48, 0x01, 0x0e, 0xc3,
        ],
    ),
    (
        b"__vdso_gettimeofday",
        &[
            0xb8, 0x60, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x48, 0x85, 0xff, 0x74, 0x0a, 0x48, 0x8b,
            0x0d, 0x2d, 0x00, 0x00, 0x00, 0x48, 0x01, 0x0f, 0xc3,
        ],
    ),
    (
        b"__vdso_time",
        &[
            0x48, 0x89, 0xfa, 0x31, 0xff, 0xb8, 0xc9, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x48, 0x03,
            0x05, 0x0d, 0x00, 0x00, 0x00, 0x48, 0x85, 0xd2, 0x74, 0x03, 0x48, 0x89, 0x02, 0xc3,
        ],
    ),
];

/// Lets the clock of a running process and of its child processes jump: it is ahead by this many seconds from now on.
/// Processes that they start later have the same clock.
pub(crate) fn set_ahead(process: u32, ahead: i64) {
    assert_eq!(std::env::consts::ARCH, "x86_64", "the functions are machine code");
    set_one(process, ahead).expect("the clock of the process");
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    for thread in threads.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children"));
        for child in children.expect("its child processes").split_whitespace() {
            let child = child.parse().expect("a process");
            // It may have ended meanwhile.
            if let Err(error) = set_one(child, ahead) {
                assert!(!is_running(child), "the clock of process {child}: {error}");
            }
        }
    }
}

fn is_running(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/maps")).is_ok_and(|maps| !maps.is_empty())
}

fn set_one(process: u32, ahead: i64) -> io::Result<()> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"));
    let range = line.and_then(|line| line.split(' ').next()?.split_once('-'));
    let (from, to) = range.ok_or_else(|| io::Error::other("it has no vDSO"))?;
    let [from, to] = [from, to].map(|it| u64::from_str_radix(it, 16).expect("an address"));
    let path = format!("/proc/{process}/mem");
    let memory = OpenOptions::new().read(true).write(true).open(path)?;
    let mut image = vec![0; usize::try_from(to - from).expect("a length")];
    memory.read_exact_at(&mut image, from)?;
    // The rest of the last page is unused. Threads may still be in the former functions.
    let own = to - ALL;
    if image[image.len() - usize::try_from(ALL).expect("a length")..].iter().any(|it| *it != 0) {
        return memory.write_all_at(&ahead.to_le_bytes(), to - 8);
    }
    let places = FUNCTIONS.map(|(name, _)| from + function(&image, name).expect("a function"));
    let jumps = places.map(|place| place + 1..place + JUMP);
    while_stopped(process, &jumps, || {
        memory.write_all_at(&ahead.to_le_bytes(), to - 8)?;
        for (at, (place, (_, code))) in places.into_iter().zip(FUNCTIONS).enumerate() {
            let at = own + (at * FUNCTION) as u64;
            memory.write_all_at(code, at)?;
            let far = at.cast_signed() - (place + JUMP).cast_signed();
            let far = i32::try_from(far).expect("a near jump").to_le_bytes();
            memory.write_all_at(&[&[0xe9], &far[..]].concat(), place)?;
        }
        Ok(())
    })
}

/// Where a function of an ELF image for 64 bits begins.
fn function(image: &[u8], wanted: &[u8]) -> Option<u64> {
    const DYNAMIC_SYMBOLS: usize = 11;
    let number = |at: usize, bytes: usize| {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(image.get(at..at + bytes)?);
        usize::try_from(u64::from_le_bytes(number)).ok()
    };
    let section = |at: usize| Some(number(40, 8)? + at * number(58, 2)?);
    let mut sections = (0..number(60, 2)?).filter_map(section);
    let symbols = sections.find(|at| number(at + 4, 4) == Some(DYNAMIC_SYMBOLS))?;
    let names = number(section(number(symbols + 40, 4)?)? + 24, 8)?;
    let (first, bytes) = (number(symbols + 24, 8)?, number(symbols + 32, 8)?);
    let found = (first..first + bytes).step_by(24).find(|at| {
        let name = number(*at, 4).and_then(|name| image.get(names + name..));
        name.and_then(|name| name.strip_prefix(wanted)).is_some_and(|rest| rest.first() == Some(&0))
    })?;
    number(found + 8, 8).map(|at| at as u64)
}

/// Does something while a process is stopped, with no thread within these addresses.
fn while_stopped(
    process: u32,
    addresses: &[Range<u64>],
    act: impl Fn() -> io::Result<()>,
) -> io::Result<()> {
    let until = Instant::now() + TIMEOUT;
    let pid = Pid::from_raw(process.try_into().expect("a process"));
    loop {
        kill(pid, Signal::SIGSTOP)?;
        let threads = wait_for_stop(process, until);
        let within = |at: &u64| addresses.iter().any(|addresses| addresses.contains(at));
        let done = match threads {
            Ok(threads) if threads.iter().any(within) => None,
            Ok(_) => Some(act()),
            Err(error) => Some(Err(error)),
        };
        kill(pid, Signal::SIGCONT)?;
        if let Some(done) = done {
            return done;
        }
    }
}

/// Waits until all threads have stopped; returns where they are.
fn wait_for_stop(process: u32, until: Instant) -> io::Result<Vec<u64>> {
    loop {
        let threads = std::fs::read_dir(format!("/proc/{process}/task"))?;
        let places = threads.map(|thread| place_of_stopped(&thread?.path()));
        if let Some(places) = places.collect::<io::Result<Option<Vec<u64>>>>()? {
            return Ok(places);
        }
        if Instant::now() > until {
            return Err(io::Error::other("it does not stop"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Where a thread has stopped; `None` if it still runs.
fn place_of_stopped(thread: &Path) -> io::Result<Option<u64>> {
    let state = std::fs::read_to_string(thread.join("stat"))?;
    if !state.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')) {
        return Ok(None);
    }
    // The last number is the program counter.
    let call = std::fs::read_to_string(thread.join("syscall"))?;
    let place = call.trim().rsplit_once("0x").map(|(_, place)| u64::from_str_radix(place, 16));
    place.transpose().map_err(io::Error::other)
}
