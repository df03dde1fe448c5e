//! Everything stored can be read back: a value that could not be is refused before it is written.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ostraca_sdk::serde_json::{Value, json};
use ostraca_sdk::testing::{self, call};
use ostraca_sdk::{entity, state};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Reading {
    celsius: Option<f64>,
    history: Vec<(f32, f64)>,
}

/// A recursive type: JSON's reader allows 128 levels, its writer any number.
#[derive(Default, Serialize, Deserialize)]
struct Nest {
    within: Option<Box<Nest>>,
}

#[derive(Default, Serialize, Deserialize)]
struct Probe {
    readings: BTreeMap<String, Reading>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    note: Option<String>,
    /// Omitted when it is 7, and then missing when the struct is read.
    #[serde(skip_serializing_if = "is_zero")]
    scale: u32,
    nest: Nest,
}

fn is_zero(scale: &u32) -> bool {
    *scale == 7
}

#[entity]
impl Probe {
    #[message]
    fn measure(&mut self, place: String, divide: f64, by: f64) -> usize {
        self.readings.entry(place).or_default().celsius = Some(divide / by);
        self.readings.len()
    }

    #[message]
    fn log(&mut self, place: String, divide: f32) {
        self.readings.entry(place).or_default().history.push((1.0 / divide, 1.0));
    }

    #[message]
    fn scale(&mut self, scale: u32) {
        self.scale = scale;
    }

    #[message]
    fn nest(&mut self, depth: u32) {
        for _ in 0..depth {
            self.nest = Nest { within: Some(Box::new(std::mem::take(&mut self.nest))) };
        }
    }

    #[message]
    fn value(&self, place: String) -> Option<f64> {
        self.readings.get(&place)?.celsius
    }
}

/// Returns the error of a refused turn, which must leave the store unchanged and the entity able to answer.
fn refused(method: &str, arguments: Value) -> String {
    let before = state::list_raw("", 10, None);
    let panic = catch_unwind(AssertUnwindSafe(|| call::<Probe>(method, arguments))).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap().clone();
    assert!(text.starts_with("state-does-not-encode: "), "{text}");
    assert_eq!(state::list_raw("", 10, None), before);
    assert_eq!(call::<Probe>("value", "home"), Ok(json!(20.5)));
    text
}

#[test]
fn values_that_json_cannot_express_are_not_stored() {
    call::<Probe>("measure", json!({"place": "home", "divide": 41.0, "by": 2.0})).unwrap();
    for (divide, by) in [(0.0, 0.0), (1.0, 0.0), (-1.0, 0.0)] {
        let text = refused("measure", json!({"place": "home", "divide": divide, "by": by}));
        assert!(text.contains("in `readings.celsius`"), "{text}");
    }
    let text = refused("log", json!({"place": "attic", "divide": 0.0}));
    assert!(text.contains("inf in `readings.history`"), "{text}");
}

#[test]
fn values_that_would_not_decode_are_not_stored() {
    call::<Probe>("measure", json!({"place": "home", "divide": 41.0, "by": 2.0})).unwrap();
    let text = refused("scale", json!(7));
    assert!(text.contains("missing field `scale`") && text.contains("#[serde(default)]"), "{text}");
    let text = refused("nest", json!(200));
    assert!(text.contains("recursion limit"), "{text}");
    call::<Probe>("nest", json!(20)).unwrap();
}

#[test]
fn a_stored_number_reads_back_exactly() {
    // Parsers that round twice are off by one bit for these numbers.
    for number in [0.3_f64.powi(25), 5.0e-324, 1.797_693_134_862_315_7e308, 0.1 + 0.7] {
        let mut number = number;
        for _ in 0..200 {
            let arguments = json!({"place": "home", "divide": number, "by": 1.0});
            call::<Probe>("measure", arguments).unwrap();
            testing::crash_instance::<Probe>();
            assert_eq!(call::<Probe>("value", "home"), Ok(json!(number)));
            number *= 0.999_1;
        }
    }
}

#[test]
fn a_key_refuses_numbers_that_json_cannot_express() {
    state::set("n", &1.5);
    for value in [f64::NAN, f64::INFINITY] {
        let panic = catch_unwind(|| state::set("n", &Some([value]))).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("state-does-not-encode: the value of key `n`"), "{text}");
    }
    assert_eq!(state::get::<f64>("n"), Some(1.5));
}
