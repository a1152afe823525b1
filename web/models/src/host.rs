//! The stages of a task that a decoder answers, which the page runs.

use crate::arrays::ArrayHandle;
use crate::decoder::{Decoder, PageDecoder};
use crate::decoding::{Decoding, Run};
use crate::family::ModelFamily;
use crate::task::Page;
use cotensor_core::Result;
use cotensor_pipeline::{DecoderHost, Half, Writing, first_inputs};
use cotensor_preprocess::{Array, TextProcessor};
use std::cell::Cell;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"import type { TaskHost } from "./task_host.js";"#;

#[wasm_bindgen]
extern "C" {
    /// `TaskHost` of `web/src/models/task_host.ts`. A method that fails returns a rejected promise: it must not throw.
    #[wasm_bindgen(typescript_type = "TaskHost")]
    pub type PageHost;

    #[wasm_bindgen(method)]
    fn notice(this: &PageHost, notice: &str);
    #[wasm_bindgen(method)]
    fn text(this: &PageHost, piece: &str) -> JsValue;
    #[wasm_bindgen(method)]
    fn turn(this: &PageHost) -> JsValue;
    #[wasm_bindgen(method, js_name = setPart)]
    fn set_part(this: &PageHost, features: ArrayHandle);
    #[wasm_bindgen(method)]
    fn encode(this: &PageHost, role: &str) -> JsValue;
    #[wasm_bindgen(method)]
    fn decoder(this: &PageHost) -> JsValue;
    #[wasm_bindgen(method)]
    fn decode(this: &PageHost, decoding: Decoding) -> JsValue;

    type Uint32Array;

    /// The array, whose elements are copied into this module.
    #[wasm_bindgen(method)]
    fn subarray(this: &Uint32Array) -> Vec<u32>;
}

/// Runs the stages of a task on the page.
pub(crate) struct Host {
    pub(crate) host: PageHost,
    pub(crate) page: Rc<Page>,
    pub(crate) family: Rc<ModelFamily>,
    pub(crate) tokenizer: Rc<TextProcessor>,
}

impl Host {
    /// The numbers of a promise.
    async fn numbers(&self, promise: JsValue) -> Vec<u32> {
        self.page.wait(promise).await.unchecked_into::<Uint32Array>().subarray()
    }
}

impl cotensor_pipeline::Host for Host {
    type Tokenizer = Rc<TextProcessor>;

    fn tokenizer(&mut self) -> Result<Rc<TextProcessor>> {
        Ok(Rc::clone(&self.tokenizer))
    }

    fn tokens(&mut self, text: &str, plain: bool) -> Result<(Vec<i64>, bool)> {
        let batch = if plain { self.tokenizer.encode_plain(text)? } else { self.tokenizer.encode(&[text])? };
        let (ids, is_cut) = (batch.ids.as_i64()?.to_vec(), batch.truncated.contains(&true));
        if is_cut {
            self.host.notice(&format!("text: truncated to {} tokens", ids.len()));
        }
        Ok((ids, is_cut))
    }

    fn notice(&mut self, notice: String) {
        self.host.notice(&notice);
    }

    async fn give(&mut self, piece: &str) -> Result<()> {
        self.page.wait(self.host.text(piece)).await;
        Ok(())
    }

    async fn turn(&mut self) {
        self.page.wait(self.host.turn()).await;
    }

    fn set_part(&mut self, features: Array) {
        self.host.set_part(features.into());
    }

    async fn encode(&mut self, role: &str) -> Result<Vec<usize>> {
        let shape = self.numbers(self.host.encode(role)).await;
        Ok(shape.into_iter().map(|dim| dim as usize).collect())
    }

    async fn scores(&mut self, tokens: &[i64]) -> Result<Vec<f32>> {
        let decoder: PageDecoder = self.page.wait(self.host.decoder()).await.unchecked_into();
        let decoder = Decoder::new(decoder, Rc::clone(&self.page), &self.family)?;
        let inputs = first_inputs(&decoder, tokens).await?;
        decoder.run(Half::Prompt, &inputs, &[]).await
    }

    async fn decode(&mut self, writing: &Rc<Writing<Rc<TextProcessor>>>) -> Result<(Vec<i64>, bool)> {
        let (writing, family) = (Rc::clone(writing), Rc::clone(&self.family));
        let run = Rc::new(Run { writing, family, has_run: Cell::new(false) });
        let tokens = self.numbers(self.host.decode(Decoding(Rc::clone(&run)))).await;
        Ok((tokens.into_iter().map(i64::from).collect(), run.has_run.get()))
    }
}
