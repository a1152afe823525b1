//! The names of parameters in GGUF files. The table agrees with `gguf.tensor_mapping` of the package gguf 0.19.0.

use cotensor_core::{Error, Result};

/// An architecture of GGUF.
pub(super) struct Architecture {
    /// The value of `general.architecture`.
    pub(super) name: &'static str,
    /// Tensors of the whole model, without `.weight`, and their parameters.
    whole: &'static [(&'static str, &'static str)],
    /// The parameters of a layer start with this and the number of the layer.
    layers: &'static str,
    /// Tensors of a layer.
    of_layer: &'static [(&'static str, &'static str)],
    /// Tensors whose rows have another order, and the entry with the number of their heads, which starts with the architecture's name.
    permuted: &'static [(&'static str, &'static [&'static str])],
}

const LLAMA_WHOLE: &[(&str, &str)] = &[("token_embd", "model.embed_tokens"), ("output", "lm_head")];
const LLAMA_LAYER: &[(&str, &str)] = &[
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
const HEADS: &str = "attention.head_count";
const KV_HEADS: &str = "attention.head_count_kv";

const ARCHITECTURES: [Architecture; 5] = [
    // Also Mistral.
    Architecture {
        name: "llama",
        whole: LLAMA_WHOLE,
        layers: "model.layers",
        of_layer: LLAMA_LAYER,
        permuted: &[("attn_q", &[HEADS]), ("attn_k", &[KV_HEADS, HEADS])],
    },
    Architecture { name: "qwen2", whole: LLAMA_WHOLE, layers: "model.layers", of_layer: LLAMA_LAYER, permuted: &[] },
    Architecture { name: "qwen3", whole: LLAMA_WHOLE, layers: "model.layers", of_layer: LLAMA_LAYER, permuted: &[] },
    Architecture {
        name: "gpt2",
        whole: &[("token_embd", "transformer.wte"), ("position_embd", "transformer.wpe"), ("output", "lm_head")],
        layers: "transformer.h",
        of_layer: &[
            ("attn_qkv", "attn.c_attn"),
            ("attn_output", "attn.c_proj"),
            ("ffn_up", "mlp.c_fc"),
            ("ffn_down", "mlp.c_proj"),
        ],
        permuted: &[],
    },
    Architecture {
        name: "bert",
        whole: &[
            ("token_embd", "embeddings.word_embeddings"),
            ("position_embd", "embeddings.position_embeddings"),
            ("token_types", "embeddings.token_type_embeddings"),
        ],
        layers: "encoder.layer",
        of_layer: &[
            ("attn_q", "attention.self.query"),
            ("attn_k", "attention.self.key"),
            ("attn_v", "attention.self.value"),
            ("attn_output", "attention.output.dense"),
            ("ffn_up", "intermediate.dense"),
            ("ffn_down", "output.dense"),
        ],
        permuted: &[],
    },
];

/// The name of a parameter, without `.weight`, and how its rows lie.
#[derive(Debug, PartialEq)]
pub(super) struct Named {
    pub(super) stem: String,
    /// Entries of the metadata, without the architecture's name: the first that is there has the number of heads by which rows were permuted.
    pub(super) heads: &'static [&'static str],
}

impl Architecture {
    /// # Errors
    /// `Unsupported` for one that is not in the table.
    pub(super) fn of(name: &str) -> Result<&'static Self> {
        let found = ARCHITECTURES.iter().find(|known| known.name == name);
        let names = ARCHITECTURES.iter().map(|known| known.name).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| Error::unsupported(format!("{name:?}; {names} are imported")))
    }

    /// The parameter of a tensor.
    ///
    /// # Errors
    /// `Unsupported` for a tensor that is not a matrix of the architecture.
    pub(super) fn parameter(&self, tensor: &str) -> Result<Named> {
        let unknown = || Error::unsupported(format!("no matrix of the architecture {:?} has this name", self.name));
        let stem = tensor.strip_suffix(".weight").ok_or_else(unknown)?;
        let find = |table: &[(&str, &'static str)], name: &str| {
            table.iter().find(|(known, _)| *known == name).map(|(_, parameter)| *parameter)
        };
        let Some(rest) = stem.strip_prefix("blk.") else {
            let parameter = find(self.whole, stem).ok_or_else(unknown)?;
            return Ok(Named { stem: parameter.to_owned(), heads: &[] });
        };
        let (layer, part) = rest.split_once('.').ok_or_else(unknown)?;
        let layer: u32 = layer.parse().map_err(|_| unknown())?;
        let parameter = find(self.of_layer, part).ok_or_else(unknown)?;
        let heads = self.permuted.iter().find(|(known, _)| *known == part).map_or(&[][..], |(_, entries)| *entries);
        Ok(Named { stem: format!("{}.{layer}.{parameter}", self.layers), heads })
    }
}

/// The row in a file of llama of row `row` of the parameter: the halves of a head's rows alternate there.
pub(super) fn permuted_row(row: usize, rows_of_head: usize) -> usize {
    let (head, at, half) = (row / rows_of_head, row % rows_of_head, rows_of_head / 2);
    head * rows_of_head + at % half * 2 + at / half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_table() {
        for (architecture, tensor, parameter) in [
            ("llama", "token_embd.weight", "model.embed_tokens"),
            ("llama", "blk.11.ffn_down.weight", "model.layers.11.mlp.down_proj"),
            ("qwen3", "blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj"),
            ("gpt2", "blk.2.attn_qkv.weight", "transformer.h.2.attn.c_attn"),
            ("bert", "blk.2.ffn_up.weight", "encoder.layer.2.intermediate.dense"),
        ] {
            let found = Architecture::of(architecture).unwrap().parameter(tensor).unwrap();
            assert_eq!((found.stem.as_str(), found.heads.len()), (parameter, 0));
        }
        let llama = Architecture::of("llama").unwrap();
        assert_eq!(llama.parameter("blk.0.attn_q.weight").unwrap().heads, [HEADS]);
        assert_eq!(llama.parameter("blk.0.attn_k.weight").unwrap().heads, [KV_HEADS, HEADS]);
        for wrong in ["blk.0.ffn_gate_exps.weight", "blk.x.ffn_up.weight", "blk.0", "output", "token_types.weight", ""]
        {
            assert!(llama.parameter(wrong).is_err(), "{wrong}");
        }
        assert!(Architecture::of("mamba").is_err());
    }

    #[test]
    fn rows_of_heads_alternate() {
        let rows: Vec<usize> = (0..16).map(|row| permuted_row(row, 8)).collect();
        assert_eq!(rows, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
    }
}
