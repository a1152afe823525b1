//! The lines of code with which a program would share what the scan found, chosen by the libraries and files that its processes
//! have mapped.

use super::report::{Advice, Library, ProcessScan};
use cotensor_memory::process::MappedRange;
use std::collections::BTreeMap;
use std::path::Path;

/// The libraries by the names of their mapped files. All parts have to be mapped. The first library that is found holds the data.
const LIBRARIES: &[(Library, &[&str])] = &[
    (Library::Transformers, &["/libtorch_python.", "/tokenizers."]),
    (Library::Torch, &["/libtorch_python."]),
    (Library::Onnxruntime, &["/onnxruntime_pybind11_state."]),
    (Library::Numpy, &["/_multiarray_umath."]),
];
/// Names of files with weights end so.
const WEIGHTS: &[&str] = &[".safetensors", ".onnx", ".onnx_data", ".onnx.data"];
/// The folder of a model in the hub's cache begins so. The files below it have hashes as names.
const HUB_FOLDER: &str = "models--";

impl Library {
    /// The library's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Transformers => "transformers",
            Self::Torch => "torch",
            Self::Onnxruntime => "onnxruntime",
            Self::Numpy => "numpy",
        }
    }

    /// The two lines. `model` is a folder or a name on the hub.
    fn code(self, model: Option<&str>) -> [String; 2] {
        let model = model.unwrap_or("MODEL");
        let name = model.trim_end_matches('/').rsplit('/').next().unwrap_or(model);
        match self {
            Self::Transformers => [
                format!("with cotensor.torch.shared_weights({name:?}):"),
                format!("    model = AutoModel.from_pretrained({model:?})"),
            ],
            Self::Torch => [
                format!("cotensor.torch.publish(model, {name:?})  # one process, after it loaded the model"),
                format!("cotensor.torch.attach(model, {name:?})   # all others"),
            ],
            Self::Onnxruntime => {
                [format!("embedder = cotensor.Embedder({model:?})"), "rows = embedder.embed(texts)".to_owned()]
            }
            Self::Numpy => [
                "cotensor.connect().put(\"NAME\", array)            # one process".to_owned(),
                "array = cotensor.connect().get(\"NAME\").numpy()   # all others".to_owned(),
            ],
        }
    }
}

/// What the mappings of a process show.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Used {
    library: Option<Library>,
    model: Option<String>,
}

impl Used {
    pub(super) fn of(ranges: &[MappedRange]) -> Self {
        let mapped = |part: &&str| ranges.iter().any(|range| range.name.contains(*part));
        let library = LIBRARIES.iter().find(|(_, parts)| parts.iter().all(mapped)).map(|(library, _)| *library);
        let model = |range: &MappedRange| model_of(range.name.strip_suffix(" (deleted)").unwrap_or(&range.name));
        // The largest file: a program may map a small model, too.
        let by_size = ranges.iter().filter_map(|range| Some((range.end - range.start, model(range)?)));
        Self { library, model: by_size.max_by_key(|(bytes, _)| *bytes).map(|(_, model)| model) }
    }
}

/// The model of a mapped file: its name on the hub, or its folder.
fn model_of(file: &str) -> Option<String> {
    let path = Path::new(file);
    // The text is shown as a line of code.
    if !path.is_absolute() || file.chars().any(|c| c.is_control() || c == '"' || c == '\\') {
        return None;
    }
    if let Some(folder) = file.split('/').find_map(|part| part.strip_prefix(HUB_FOLDER)) {
        return Some(folder.replace("--", "/"));
    }
    if !WEIGHTS.iter().any(|ending| file.ends_with(ending)) {
        return None;
    }
    let folder = path.parent()?;
    // Graphs are in a folder of their own below the model's.
    let folder = if folder.ends_with("onnx") { folder.parent()? } else { folder };
    folder.to_str().map(str::to_owned)
}

/// The advice for programs with at least `bytes_min` of duplicates, most first. `used` has the processes by their ids.
pub(super) fn advice(
    processes: &[ProcessScan],
    used: &BTreeMap<u32, Used>,
    bytes_min: u64,
    most: usize,
) -> Vec<Advice> {
    let mut programs: BTreeMap<(&str, &Used), Advice> = BTreeMap::new();
    for process in processes {
        let Some(found) = used.get(&process.pid) else { continue };
        let Some(library) = found.library else { continue };
        let new = || Advice {
            pids: Vec::new(),
            command: process.command.clone(),
            library,
            model: found.model.clone(),
            duplicate_bytes: 0,
            code: library.code(found.model.as_deref()),
        };
        let program = programs.entry((&process.command, found)).or_insert_with(new);
        program.pids.push(process.pid);
        program.duplicate_bytes += process.holding.duplicate_bytes;
    }
    let mut all: Vec<Advice> =
        programs.into_values().filter(|program| program.duplicate_bytes >= bytes_min.max(1)).collect();
    all.iter_mut().for_each(|program| program.pids.sort_unstable());
    all.sort_by_key(|program| std::cmp::Reverse(program.duplicate_bytes));
    all.truncate(most);
    all
}

#[cfg(test)]
mod tests {
    use super::super::Holding;
    use super::*;

    fn ranges(names: &[&str]) -> Vec<MappedRange> {
        let range = |(number, name): (usize, &&str)| MappedRange {
            name: (*name).to_owned(),
            end: number as u64 + 1,
            ..MappedRange::default()
        };
        names.iter().enumerate().map(range).collect()
    }

    const TORCH: &str = "/usr/lib/python3/site-packages/torch/lib/libtorch_python.so";
    const TOKENIZERS: &str = "/usr/lib/python3/site-packages/tokenizers/tokenizers.abi3.so";
    const ORT: &str = "/v/onnxruntime/capi/onnxruntime_pybind11_state.cpython-311-x86_64-linux-gnu.so";
    const NUMPY: &str = "/v/numpy/_core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so";

    #[test]
    fn library_and_model_come_from_mapped_files() {
        for (names, library, model) in [
            (
                &[TORCH, TOKENIZERS, NUMPY, "/m/bert/model.safetensors"][..],
                Some(Library::Transformers),
                Some("/m/bert"),
            ),
            (
                &[TOKENIZERS, TORCH, "/h/hub/models--google--vit-base/blobs/0123"],
                Some(Library::Transformers),
                Some("google/vit-base"),
            ),
            (&[TORCH, NUMPY, "[heap]"], Some(Library::Torch), None),
            (&[ORT, "/m/a/onnx/model.onnx_data", NUMPY], Some(Library::Onnxruntime), Some("/m/a")),
            (&[NUMPY, "/m/small/x.onnx", "/m/large/y.onnx (deleted)"], Some(Library::Numpy), Some("/m/large")),
            (&["/lib/libc.so.6", "/m/it\"s/model.safetensors", "relative.onnx"], None, None),
        ] {
            assert_eq!(Used::of(&ranges(names)), Used { library, model: model.map(str::to_owned) }, "{names:?}");
        }
    }

    #[test]
    fn processes_of_one_program_have_one_advice() {
        let process = |pid, command: &str, duplicate_bytes| ProcessScan {
            pid,
            command: command.to_owned(),
            resident_bytes: 0,
            zero_bytes: 0,
            swapped_bytes: 0,
            holding: Holding { duplicate_bytes, ..Holding::default() },
        };
        let processes = [
            process(7, "python serve.py", 900),
            process(5, "python serve.py", 900),
            process(6, "python other.py", 2000),
            process(8, "cat", 5000),
            process(9, "python tiny.py", 3),
        ];
        let of = |names: &[&str]| Used::of(&ranges(names));
        let used = BTreeMap::from([
            (5, of(&[TORCH, TOKENIZERS, "/m/bert/model.safetensors"])),
            (7, of(&[TORCH, TOKENIZERS, "/m/bert/model.safetensors"])),
            (6, of(&[ORT])),
            (8, of(&["/bin/cat"])),
            (9, of(&[NUMPY])),
        ]);
        let found = advice(&processes, &used, 1000, 10);
        assert_eq!(found.iter().map(|advice| &advice.pids[..]).collect::<Vec<_>>(), [&[6][..], &[5, 7]]);
        assert_eq!(found[0].code, ["embedder = cotensor.Embedder(\"MODEL\")", "rows = embedder.embed(texts)"]);
        assert_eq!(found[1].duplicate_bytes, 1800);
        assert_eq!(
            found[1].code,
            ["with cotensor.torch.shared_weights(\"bert\"):", "    model = AutoModel.from_pretrained(\"/m/bert\")"]
        );
        assert_eq!(advice(&processes, &used, 1, 1).len(), 1);
    }
}
