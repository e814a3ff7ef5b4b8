//! Whisper's transcripts, with times of segments and of words.

use crate::judged::assert_as_judged;
use crate::weights::is_present;

#[test]
fn transcripts_are_those_of_transformers() {
    if is_present("speech") {
        assert_as_judged("speech/whisper", 112);
    }
}
