//! A SentencePiece model file: its pieces, and the other fields that a tokenizer needs.
//!
//! The file is a Protocol Buffers message:
//! <https://github.com/google/sentencepiece/blob/v0.2.1/src/sentencepiece_model.proto>

use candle_blocks_templates::minijinja::value::Value;

/// A piece, its score and its kind.
pub(super) struct Piece {
    pub text: String,
    pub score: f32,
    kind: u64,
}

/// Piece types that are found in a text before all others.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
/// The number for a Unigram model.
const UNIGRAM: u64 = 1;

/// The contents used here.
pub(super) struct SentencePiece {
    pub pieces: Vec<Piece>,
    /// The table by which characters are normalized.
    pub charsmap: Vec<u8>,
    /// The unknown piece's index.
    pub unknown: usize,
    /// Names of the three special pieces, `None` for one that the model does not use: unknown, first and last.
    pub named: [Option<String>; 3],
    /// Set for a Unigram model, unset for BPE.
    pub is_unigram: bool,
    /// Set if an unknown character becomes its bytes.
    pub byte_fallback: bool,
}

impl SentencePiece {
    /// Reads a file.
    ///
    /// # Errors
    /// If the bytes are not such a message.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut file = Self {
            pieces: Vec::new(),
            charsmap: Vec::new(),
            unknown: 0,
            named: ["<unk>", "<s>", "</s>"].map(|name| Some(name.to_string())),
            is_unigram: true,
            byte_fallback: false,
        };
        let mut is_used = [true; 3];
        for field in fields(bytes) {
            match field? {
                (1, Content::Bytes(piece)) => file.pieces.push(Piece::read(piece)?),
                (2, Content::Bytes(trainer)) => {
                    for field in fields(trainer) {
                        match field? {
                            (3, Content::Number(kind)) => file.is_unigram = kind == UNIGRAM,
                            (35, Content::Number(flag)) => file.byte_fallback = flag != 0,
                            // A negative id says that there is no such piece.
                            (tag @ 40..=42, Content::Number(id)) => {
                                is_used[tag as usize - 40] = id as i64 >= 0;
                                if tag == 40 && id as i64 >= 0 {
                                    file.unknown = id as usize;
                                }
                            }
                            (tag @ 45..=47, Content::Bytes(name)) if !name.is_empty() => {
                                let name = String::from_utf8_lossy(name).into_owned();
                                file.named[tag as usize - 45] = Some(name);
                            }
                            _ => {}
                        }
                    }
                }
                (3, Content::Bytes(normalizer)) => {
                    for field in fields(normalizer) {
                        if let (2, Content::Bytes(map)) = field? {
                            file.charsmap = map.to_vec();
                        }
                    }
                }
                _ => {}
            }
        }
        for (name, is_used) in file.named.iter_mut().zip(is_used) {
            name.take_if(|_| !is_used);
        }
        match file.pieces.is_empty() {
            true => Err("it contains no SentencePiece pieces".to_string()),
            false => Ok(file),
        }
    }

    /// Returns the pieces that are found in a text before all others, as `added_tokens_decoder` would describe them.
    pub fn added_tokens(&self) -> Vec<Value> {
        let added = self
            .pieces
            .iter()
            .filter(|piece| [CONTROL, USER_DEFINED].contains(&piece.kind));
        let described = added.map(|piece| {
            candle_blocks_templates::minijinja::context! { content => piece.text.clone(), special => piece.kind == CONTROL, normalized => false }
        });
        described.collect()
    }
}

impl Piece {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut piece = Self {
            text: String::new(),
            score: 0.0,
            kind: 1,
        };
        for field in fields(bytes) {
            match field? {
                (1, Content::Bytes(text)) => {
                    let text = std::str::from_utf8(text);
                    piece.text = text.map_err(|_| "a piece is no text")?.to_string();
                }
                (2, Content::Four(score)) => piece.score = f32::from_le_bytes(score),
                (3, Content::Number(kind)) => piece.kind = kind,
                _ => {}
            }
        }
        Ok(piece)
    }
}

/// A field's content.
enum Content<'b> {
    Number(u64),
    Four([u8; 4]),
    Bytes(&'b [u8]),
    Other,
}

/// Returns a message's fields: tag and content.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<(u64, Content<'_>), String>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field.ok_or_else(|| "it is cut short or not a SentencePiece model".to_string()))
    })
}

fn field<'b>(rest: &mut &'b [u8]) -> Option<(u64, Content<'b>)> {
    let tag = number(rest)?;
    let content = match tag & 7 {
        0 => Content::Number(number(rest)?),
        1 => {
            rest.split_off(..8)?;
            Content::Other
        }
        2 => {
            let n = usize::try_from(number(rest)?).ok()?;
            Content::Bytes(rest.split_off(..n)?)
        }
        5 => Content::Four(rest.split_off(..4)?.try_into().ok()?),
        _ => return None,
    };
    Some((tag >> 3, content))
}

/// Reads a varint: seven bits in each byte, the lowest first.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
