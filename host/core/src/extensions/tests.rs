use super::*;

/// A struct as this release defines it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Old {
    base: u8,
    extensions: Extensions<Self>,
}

impl Extensible for Old {
    const NAME: &'static str = "Thing";
}

/// The same struct as a later release defines it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct New {
    base: u8,
    extensions: Extensions<Self>,
}

const COLOUR: u32 = 2;
const LOCK: u32 = 3;

impl Extensible for New {
    const NAME: &'static str = "Thing";
    const FIELDS: &'static [u32] = &[COLOUR, LOCK];
}

fn new(colour: Option<&str>, lock: Option<u64>) -> Vec<u8> {
    let mut new = New { base: 9, extensions: Extensions::default() };
    colour.inspect(|colour| new.extensions.set(COLOUR, colour).expect("fits"));
    lock.inspect(|lock| new.extensions.set(LOCK, lock).expect("fits"));
    codec::encode(&new).expect("encodes")
}

fn old(bytes: &[u8]) -> Result<Old, CodecError> {
    codec::decode(bytes)
}

#[test]
fn an_empty_block_is_one_byte() {
    assert_eq!(new(None, None), [9, 0]);
    assert!(old(&[9, 0]).expect("decodes").extensions.is_empty());
}

#[test]
fn an_unknown_optional_field_is_kept_when_written_back() {
    let bytes = new(Some("red"), None);
    assert_eq!(bytes, [9, 1, 2, 4, 3, b'r', b'e', b'd']);
    let mut read = old(&bytes).expect("decodes");
    read.base = 10;
    let back: New = codec::decode(&codec::encode(&read).expect("encodes")).expect("decodes");
    assert_eq!(back.base, 10);
    assert_eq!(back.extensions.get::<String>(COLOUR), Ok(Some("red".into())));
    assert_eq!(back.extensions.get::<u64>(LOCK), Ok(None));
}

#[test]
fn an_unknown_required_field_is_refused_by_name() {
    let error = old(&new(Some("red"), Some(7))).expect_err("it is required");
    assert_eq!(
        error,
        ExtensionError::UnknownRequiredField { struct_name: "Thing", number: LOCK }.into()
    );
    assert!(error.to_string().contains("field 3 of Thing is required"), "{error}");
    let known: New = codec::decode(&new(None, Some(7))).expect("the later release knows it");
    assert_eq!(known.extensions.get(LOCK), Ok(Some(7_u64)));
}

#[test]
fn a_field_that_was_set_again_has_its_last_value() {
    let mut it = New { base: 1, extensions: Extensions::default() };
    it.extensions.set(LOCK, &1_u64).expect("fits");
    it.extensions.set(COLOUR, &"red").expect("fits");
    it.extensions.set(LOCK, &2_u64).expect("fits");
    let bytes = codec::encode(&it).expect("encodes");
    assert_eq!(bytes, [1, 2, 2, 4, 3, b'r', b'e', b'd', 3, 1, 2]);
    assert_eq!(codec::decode::<New>(&bytes).expect("decodes"), it);
}

#[test]
fn duplicate_unsorted_and_zero_numbers_are_refused() {
    for block in [&[2, 2, 0, 2, 0][..], &[2, 4, 0, 2, 0], &[1, 0, 0]] {
        let error = old(&[&[9][..], block].concat()).expect_err("refused");
        assert!(
            matches!(error, CodecError::Extension(ExtensionError::InvalidFieldOrder { .. })),
            "{error}"
        );
    }
}

#[test]
fn trailing_bytes_and_truncated_blocks_are_refused() {
    let whole = new(Some("red"), None);
    assert_eq!(old(&[&whole[..], &[0]].concat()), Err(CodecError::Trailing(1)));
    for cut in 0..whole.len() {
        let error = old(&whole[..cut]).expect_err("cut");
        assert!(matches!(error, CodecError::Malformed(_)), "{cut}: {error}");
    }
    // A block's error does not affect the next decoding.
    old(&[9, 1, 1, 0]).expect_err("a required field");
    assert!(matches!(old(&[]), Err(CodecError::Malformed(_))));
}

#[test]
fn a_block_has_a_bound_on_fields_and_on_bytes() {
    assert_eq!((MAX_FIELDS, MAX_BYTES), (64, 65_536), "the same in every release");
    let fields = |count: u8| {
        let block = (1..=count).flat_map(|number| [number * 2, 0]);
        [9, count].into_iter().chain(block).collect::<Vec<u8>>()
    };
    old(&fields(60)).expect("within the limit");
    let most = [&fields(63)[2..], &[0x80, 1, 0]].concat();
    old(&[&[9, 64][..], &most].concat()).expect("as many fields as a block may have");
    // Numbers from 128 upwards take two bytes.
    let mut many: Vec<u8> = vec![9, 65];
    (1..=65_u32).for_each(|number| {
        let number = number * 2;
        match u8::try_from(number) {
            Ok(low) if low < 128 => many.push(low),
            _ => many.extend([(number & 0x7f) as u8 | 0x80, (number >> 7) as u8]),
        }
        many.push(0);
    });
    let too_large = CodecError::from(ExtensionError::TooLarge { struct_name: "Thing" });
    assert_eq!(old(&many), Err(too_large.clone()));
    let mut it = New { base: 1, extensions: Extensions::default() };
    it.extensions.set(COLOUR, &vec![0_u8; MAX_BYTES - 3]).expect("as much as fits");
    let before = it.clone();
    assert_eq!(it.extensions.set(LOCK, &1_u64), Err(too_large.clone()));
    assert_eq!(it, before);
    let large = codec::encode(&vec![0_u8; MAX_BYTES + 1]).expect("encodes");
    assert_eq!(old(&[&[9, 1, 2][..], &large].concat()), Err(too_large));
    let most = codec::encode(&vec![0_u8; MAX_BYTES]).expect("encodes");
    old(&[&[9, 1, 2][..], &most].concat()).expect("as many bytes as a block may have");
}

/// A struct with one more field than a block may have.
#[derive(Clone, Debug)]
struct Wide;

impl Extensible for Wide {
    const NAME: &'static str = "Wide";
    const FIELDS: &'static [u32] = &{
        let mut fields = [0; MAX_FIELDS + 1];
        let mut at = 0;
        while at < fields.len() {
            fields[at] = 2 * (at as u32 + 1);
            at += 1;
        }
        fields
    };
}

#[test]
fn setting_fields_respects_the_limit_of_decoding() {
    let mut block = Extensions::<Wide>::default();
    let (last, rest) = Wide::FIELDS.split_last().expect("fields");
    for number in rest {
        block.set(*number, &0_u8).expect("as many as fit");
    }
    let before = block.clone();
    assert_eq!(
        block.set(*last, &0_u8),
        Err(ExtensionError::TooLarge { struct_name: "Wide" }.into())
    );
    assert!(block == before);
    block.set(rest[0], &1_u8).expect("the block has the field already");
}

#[test]
fn blocks_are_equal_and_hash_alike_only_with_equal_fields() {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    let hash = |it: &Extensions<New>| BuildHasherDefault::<DefaultHasher>::default().hash_one(it);
    let empty = Extensions::<New>::default();
    let mut red = empty.clone();
    red.set(COLOUR, &"red").expect("fits");
    assert!(empty.is_empty() && !red.is_empty());
    assert!(red != empty && red == red.clone());
    assert_ne!(hash(&red), hash(&empty));
    assert_eq!(hash(&red), hash(&red.clone()));
    assert_eq!(format!("{red:?}"), r#"{2: b"\x03red"}"#);
}

#[test]
fn a_value_that_is_not_a_block_is_refused_by_name() {
    let number = serde::de::value::U32Deserializer::<serde::de::value::Error>::new(5);
    let error = Extensions::<Old>::deserialize(number).expect_err("not a block");
    assert_eq!(error.to_string(), "invalid type: integer `5`, expected the extensions of Thing");
}
