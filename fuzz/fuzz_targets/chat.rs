//! A checkpoint's chat template: the `tokenizer_config.json`, and a `chat_template.jinja`.

#![no_main]

use candle_blocks::text::{ChatTemplate, Message, Tokenizer};
use candle_blocks_fuzz::{Folder, files, said};

const TOKENIZER: &[u8] = include_bytes!("../../weights/text/labels/tokenizer.json");

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = Folder::new();
    folder.write("tokenizer.json", TOKENIZER);
    for (name, bytes) in ["tokenizer_config.json", "chat_template.jinja"]
        .iter()
        .zip(files(data))
    {
        folder.write(name, bytes);
    }
    let Some(tokenizer) = said(Tokenizer::open(folder.root())) else {
        return;
    };
    if let Some(template) = said(ChatTemplate::of(&tokenizer)) {
        let messages = [Message::system("be short"), Message::user("one\ntwo")];
        said(template.render(&messages, true).map(drop));
    }
});
