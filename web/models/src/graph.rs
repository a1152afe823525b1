//! A graph's file, from which stages are made.

use crate::bytes::{Bytes, BytesReader, Locations, ScriptFiles};
use crate::errors::Result;
use crate::family::ModelFamily;
use crate::keys::hash;
use crate::stage::{Hashes, StageGraph};
use cotensor_core::{ContentHash, Error, Kind, size};
use cotensor_graph::Graph;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The most bytes of the name of a file.
const NAME_BYTES_MAX: usize = 4096;

/// A graph's file with its external data. Its bytes stay in JavaScript's memory. `free` ends their use.
#[wasm_bindgen]
pub struct GraphFile {
    path: PathBuf,
    files: Rc<ScriptFiles>,
    hashes: Rc<Hashes>,
}

#[wasm_bindgen]
impl GraphFile {
    /// The file `file` with the content `bytes`, and the files with its external data by their locations. The arrays must not
    /// change while they are used.
    ///
    /// # Errors
    /// `Invalid` for a name that is too long, and for different numbers of locations and files.
    #[wasm_bindgen(constructor)]
    pub fn new(file: &str, bytes: Bytes, locations: Vec<String>, external: Vec<Bytes>) -> Result<GraphFile> {
        check_name(file)?;
        let files = Rc::new(ScriptFiles::new(file, bytes, locations, external)?);
        Ok(Self { path: PathBuf::from(file), files, hashes: Rc::default() })
    }

    /// The locations of the graph's external data, relative to the graph.
    ///
    /// # Errors
    /// As [`Graph::read`].
    pub fn locations(file: &str, bytes: &Bytes) -> Result<Vec<String>> {
        check_name(file)?;
        let mut locations = Locations::default();
        Graph::read(BytesReader::of(bytes), Path::new(file), &mut locations).map_err(|error| error.in_file(file))?;
        Ok(locations.0)
    }

    /// The graphs of the stage with this role: two for a stage that is cut after an inner block, else one. `preprocessing` has
    /// the fingerprint of the preprocessing of each medium of the stage, in order.
    ///
    /// # Errors
    /// `Unsupported` for a role that the family does not have; as [`Graph::read`] and [`Graph::trunk`].
    pub fn stages(&self, family: &ModelFamily, role: &str, preprocessing: Vec<String>) -> Result<Vec<StageGraph>> {
        let def = family.def().stage(role)?;
        let given = preprocessing.iter().map(|digits| hash(digits, "preprocessing"));
        let given = given.collect::<cotensor_core::Result<Vec<_>>>()?;
        if given.len() != def.media().len() {
            let media: Vec<&str> = def.media().into_iter().map(|medium| medium.name()).collect();
            let message = format!("{} fingerprints; the stage reads {}", given.len(), media.join(", "));
            return Err(Error::invalid(message).in_field("preprocessing").into());
        }
        let whole = family.graph_file(def).is_some_and(|(_, whole)| whole);
        let part = || family.config().part(def, self.read()?, whole);
        let made = || {
            let graph = part()?;
            let Some((blocks, place)) = family.config().inner_cut(def, &graph) else {
                return Ok(vec![self.stage(role, def.kind, graph, &given, None)?]);
            };
            let before =
                self.stage(&blocks.role, blocks.kind, graph.blocks_before(&blocks.output, place)?, &given, None)?;
            let after = part()?.blocks_after(&blocks.output, place)?;
            // The results depend on both parts.
            let space = [before.space().0];
            let after = self.stage(role, def.kind, after, &space, Some(&blocks.output))?;
            Ok(vec![before, after])
        };
        made().map_err(|error: Error| error.in_file(&self.path).into())
    }

    /// Whether a stage that continues another one runs the whole graph, so that the other stage does not run.
    ///
    /// # Errors
    /// As [`stages`](Self::stages).
    #[wasm_bindgen(js_name = runsWhole)]
    pub fn runs_whole(&self, family: &ModelFamily, role: &str) -> Result<bool> {
        let runs = || {
            let Some((encoder, _)) = family.config().encoder_before(family.def().stage(role)?)? else {
                return Ok(true);
            };
            Ok(family.config().end_of(encoder, &self.read()?).is_none())
        };
        runs().map_err(|error: Error| error.in_file(&self.path).into())
    }

    /// The whole graph as a head of this name.
    ///
    /// # Errors
    /// As [`Graph::read`].
    pub fn head(&self, name: &str) -> Result<StageGraph> {
        let made = || self.stage(name, Kind::Other, self.read()?, &[], None);
        made().map_err(|error| error.in_file(&self.path).into())
    }

    /// The part after the encoder of stage `role`, as a head of this name; nothing if the graph gives the result of the stage.
    ///
    /// # Errors
    /// As [`stages`](Self::stages).
    #[wasm_bindgen(js_name = headAfter)]
    pub fn head_after(&self, family: &ModelFamily, role: &str, name: &str) -> Result<Option<StageGraph>> {
        let made = || {
            let part = family.config().head_part(family.def().stage(role)?, self.read()?)?;
            part.map(|graph| self.stage(name, Kind::Other, graph, &[], None)).transpose()
        };
        made().map_err(|error: Error| error.in_file(&self.path).into())
    }

    /// The numbers `[a, b]` of an output that is `a * x + b`, where `x` is a matrix product; nothing for another output.
    ///
    /// # Errors
    /// As [`Graph::read`].
    #[wasm_bindgen(js_name = scaleAndBias)]
    pub fn scale_and_bias(&self, output: &str) -> Result<Option<Vec<f32>>> {
        let found = self.read().map_err(|error| error.in_file(&self.path))?.scale_and_bias(output);
        Ok(found.filter(|(a, b)| a.is_finite() && b.is_finite()).map(|(a, b)| vec![a, b]))
    }
}

impl GraphFile {
    fn read(&self) -> cotensor_core::Result<Graph> {
        let mut files = ScriptFiles::clone(&self.files);
        Graph::read(BytesReader::of(self.files.own_bytes()), &self.path, &mut files)
    }

    fn stage(
        &self,
        role: &str,
        kind: Kind,
        graph: Graph,
        preprocessing: &[ContentHash],
        continues: Option<&str>,
    ) -> cotensor_core::Result<StageGraph> {
        StageGraph::new(role, kind, graph, preprocessing, continues, Rc::clone(&self.files), &self.hashes)
    }
}

fn check_name(file: &str) -> Result<()> {
    if file.len() > NAME_BYTES_MAX {
        let message = format!("a name of {}; at most {}", size(file.len() as u64), size(NAME_BYTES_MAX as u64));
        return Err(Error::invalid(message).in_field("file").into());
    }
    Ok(())
}
