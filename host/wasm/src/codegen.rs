//! The configuration that native code depends on. A node and its compiler process must create the same engine, or the
//! code is refused.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use wasmtime::{Config, Engine};

/// The part of an engine's configuration that compiled code depends on. Whether there is a pool is not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CodegenConfig {
    /// Bytes of stack for the guest's calls.
    pub(crate) wasm_stack: usize,
    /// Bytes of stack for guest and host functions together.
    pub(crate) stack: usize,
    /// Bytes of address space that a memory reserves.
    pub(crate) reservation: u64,
    /// Bytes of address space reserved for further growth when a memory outgrows its reservation.
    pub(crate) growth: u64,
}

impl CodegenConfig {
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new();
        config
            .epoch_interruption(true)
            // Guests are called synchronously, one call at a time; support for more would slow down every store and
            // call.
            .concurrency_support(false)
            .wasm_memory64(false)
            .native_unwind_info(false)
            .max_wasm_stack(self.wasm_stack)
            .async_stack_size(self.stack)
            .memory_reservation(self.reservation)
            .memory_reservation_for_growth(self.growth);
        config
    }
}

impl fmt::Display for CodegenConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{},{}", self.wasm_stack, self.stack, self.reservation, self.growth)
    }
}

impl FromStr for CodegenConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<CodegenConfig, String> {
        let numbers: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
        let wrong = || format!("expected four numbers, got {text:?}");
        let Ok([wasm_stack, stack, reservation, growth]) = numbers.as_deref() else {
            return Err(wrong());
        };
        let size = |number: &u64| usize::try_from(*number).map_err(|_| wrong());
        Ok(CodegenConfig {
            wasm_stack: size(wasm_stack)?,
            stack: size(stack)?,
            reservation: *reservation,
            growth: *growth,
        })
    }
}

/// Returns a fingerprint of an engine's compatibility: engines with the same fingerprint can run each other's code.
pub(crate) fn compatibility(engine: &Engine) -> String {
    let mut hasher = ToBlake3(blake3::Hasher::new());
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.0.finalize().to_hex()[..16].to_owned()
}

/// Computes a stable digest of a value that implements only `Hash`.
struct ToBlake3(blake3::Hasher);

impl Hasher for ToBlake3 {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let hash = self.0.finalize();
        hash.as_bytes().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codegen_settings_round_trip_through_the_command_line() {
        let code = CodegenConfig { wasm_stack: 1, stack: 2, reservation: 3, growth: u64::MAX };
        assert_eq!(code.to_string().parse(), Ok(code));
        for wrong in ["", "1,2,3", "1,2,3,4,5", "1,2,x,4"] {
            assert!(wrong.parse::<CodegenConfig>().is_err(), "{wrong:?}");
        }
    }
}
