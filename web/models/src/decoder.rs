//! The graphs of a decoder, which the page runs.

use crate::arrays::{ArrayHandle, dtype};
use crate::errors::parsed;
use crate::family::ModelFamily;
use crate::task::Page;
use cotensor_core::{Error, Result};
use cotensor_graph::Port;
use cotensor_pipeline::{Cached, DecoderHost, DecoderPorts, Half, StagePorts, image_token, last_row};
use cotensor_preprocess::Array;
use cotensor_preprocess::family::{DecoderDef, Source, StageDef};
use serde::Deserialize;
use std::borrow::Cow;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"import type { Decoder } from "./decoder.js";"#;

#[wasm_bindgen]
extern "C" {
    /// `Decoder` of `web/src/models/decoder.ts`. A method that fails returns a rejected promise: it must not throw.
    #[derive(Clone)]
    #[wasm_bindgen(typescript_type = "Decoder")]
    pub type PageDecoder;

    #[wasm_bindgen(method)]
    fn graphs(this: &PageDecoder) -> String;
    #[wasm_bindgen(method)]
    fn value(this: &PageDecoder, source: &str) -> JsValue;
    #[wasm_bindgen(method)]
    fn shape(this: &PageDecoder, value: &JsValue) -> Vec<u32>;
    #[wasm_bindgen(method)]
    fn numbers(this: &PageDecoder, value: &JsValue) -> JsValue;
    #[wasm_bindgen(method)]
    fn embed(this: &PageDecoder, ids: Vec<i64>) -> JsValue;
    #[wasm_bindgen(method)]
    fn run(
        this: &PageDecoder,
        is_first: bool,
        names: Vec<String>,
        values: Vec<JsValue>,
        outputs: Vec<String>,
        inputs: Vec<String>,
    ) -> JsValue;
    /// Gives the program a piece of the text.
    #[wasm_bindgen(method)]
    pub(crate) fn text(this: &PageDecoder, piece: &str) -> JsValue;

    type Float32Array;

    /// The array, whose elements are copied into this module.
    #[wasm_bindgen(method)]
    fn subarray(this: &Float32Array) -> Vec<f32>;
}

/// A tensor of the page, or an array that this module made.
#[derive(Clone)]
pub(crate) enum Value {
    Page(JsValue),
    Array(Array),
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Array(array)
    }
}

/// Runs a decoder on the page.
pub(crate) struct Decoder {
    host: PageDecoder,
    page: Rc<Page>,
    def: &'static DecoderDef,
    prompt: Graph,
    step: Graph,
    image_token: Option<i64>,
}

struct Graph {
    def: &'static StageDef,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// An element of the list that `graphs` gives as JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphPorts {
    role: String,
    inputs: Vec<PortOfPage>,
    outputs: Vec<PortOfPage>,
}

/// `Port` of `web/src/engine/api.ts`.
#[derive(Deserialize)]
struct PortOfPage {
    name: String,
    dtype: String,
    shape: Vec<serde_json::Value>,
}

impl Decoder {
    /// The decoder of a model of `family`, whose graphs `host` has.
    ///
    /// # Errors
    /// `Unsupported` for a family without a decoder, `Invalid` for other descriptions of graphs, or as [`image_token`].
    pub(crate) fn new(host: PageDecoder, page: Rc<Page>, family: &ModelFamily) -> Result<Self> {
        let def = family.def().decoder.as_ref();
        let def = def.ok_or_else(|| Error::unsupported(format!("{} has no decoder", family.def().title)))?;
        let [prompt, step] = parsed::<[GraphPorts; 2]>(&host.graphs(), "graphs")?;
        let graph = |GraphPorts { role, inputs, outputs }| {
            let def = family.def().stage(&role)?;
            Ok::<_, Error>(Graph { def, inputs: ports(inputs)?, outputs: ports(outputs)? })
        };
        let image_token = image_token(&family.config())?;
        Ok(Self { host, page, def, prompt: graph(prompt)?, step: graph(step)?, image_token })
    }
}

fn ports(ports: Vec<PortOfPage>) -> Result<Vec<Port>> {
    ports.into_iter().map(Port::try_from).collect()
}

/// An input of a graph that JavaScript passes as JSON.
///
/// # Errors
/// `Invalid` for another JSON.
pub(crate) fn port_of(text: &str) -> Result<Port> {
    parsed::<PortOfPage>(text, "port")?.try_into()
}

impl TryFrom<PortOfPage> for Port {
    type Error = Error;

    fn try_from(PortOfPage { name, dtype: of_page, shape }: PortOfPage) -> Result<Self> {
        let dims = shape.iter().map(|dim| usize::try_from(dim.as_u64()?).ok()).collect();
        Ok(Self { name, dtype: Some(dtype(&of_page)?), dims: Some(dims) })
    }
}

impl DecoderHost for Decoder {
    type Value = Value;

    fn def(&self) -> &DecoderDef {
        self.def
    }

    fn graph(&self, half: Half) -> DecoderPorts<'_> {
        let Graph { def, inputs, outputs } = if half == Half::Prompt { &self.prompt } else { &self.step };
        DecoderPorts { ports: StagePorts { role: &def.role, inputs, outputs }, def }
    }

    fn value(&self, source: &Source) -> Option<Value> {
        let value = self.host.value(&source.to_string());
        (!value.is_undefined()).then_some(Value::Page(value))
    }

    fn image(&self) -> Option<(i64, Value)> {
        Some((self.image_token?, DecoderHost::value(self, &self.def.images.as_ref()?.features)?))
    }

    async fn embed(&self, tokens: &[i64]) -> Result<Value> {
        Ok(Value::Page(self.page.wait(self.host.embed(tokens.to_vec())).await))
    }

    async fn numbers<'v>(&self, value: &'v Value) -> Result<(Vec<usize>, Cow<'v, [f32]>)> {
        match value {
            Value::Array(array) => Ok((array.shape().to_vec(), array.as_f32()?.into())),
            Value::Page(value) => {
                let numbers: Float32Array = self.page.wait(self.host.numbers(value)).await.unchecked_into();
                let shape = self.host.shape(value).into_iter().map(|dim| dim as usize).collect();
                Ok((shape, numbers.subarray().into()))
            }
        }
    }

    async fn run(&self, half: Half, inputs: &[(&str, Value)], keep: &[&Cached]) -> Result<Vec<f32>> {
        let names = inputs.iter().map(|(name, _)| (*name).to_owned()).collect();
        let values = inputs.iter().map(|(_, value)| match value {
            Value::Page(value) => value.clone(),
            Value::Array(array) => ArrayHandle::from(array.clone()).into(),
        });
        let (outputs, read_by) = keep.iter().map(|each| (each.output.clone(), each.input.clone())).unzip();
        let row = self.host.run(half == Half::Prompt, names, values.collect(), outputs, read_by);
        let row: Float32Array = self.page.wait(row).await.unchecked_into();
        let row = row.subarray();
        last_row(&[row.len()], &row)?;
        Ok(row)
    }

    // The page counts the copies of its tensors.
    fn record_copy(&self, _bytes: usize) {}
}
