//! Quantized matrices as groups of a store.

use crate::support::onnx::noise;
use cotensor_quant::{Member, QuantSpec, QuantTensor, Scheme, Width, quantize};
use cotensor_store::{CopyReason, LocalStore, Members, TensorSpec, TensorStore};
use std::borrow::Cow;

/// The members of a matrix in a store are the matrix again, with one lease for all of them.
#[test]
fn members_of_a_group_are_the_matrix() {
    const ROWS: usize = 6;
    const COLUMNS: usize = 512;
    let store = LocalStore::builder().build();
    let holder = store.holder("test");
    let weights = noise(ROWS * COLUMNS, 7);
    for width in Width::ALL {
        for scheme in [Scheme::Search, Scheme::Affine, Scheme::TwoLevel] {
            let group = if scheme == Scheme::TwoLevel { 0 } else { 32 };
            let Ok(spec) = QuantSpec::new(width, group, scheme) else { continue };
            let tensor = quantize(&weights, ROWS, COLUMNS, &spec).unwrap();
            let name = format!("{}-{scheme}", width.bits());
            let members = tensor.members();
            let table = members.iter().map(|member| (member.name, member.dtype, member.shape.clone()));
            let table = Members::new(table.collect::<Vec<_>>()).unwrap();
            let mut reservation = store.reserve(TensorSpec::group(&name, table), &holder).unwrap();
            for member in &members {
                reservation.write_member(member.name, &member.bytes, CopyReason::Put).unwrap();
            }
            let _published = reservation.publish().unwrap();
            let lease = store.get(&name, &holder).unwrap();
            let views: Vec<_> = members.iter().map(|member| lease.member(member.name).unwrap()).collect();
            let read: Vec<Member<'_>> = (members.iter().zip(&views))
                .map(|(member, view)| Member {
                    name: member.name,
                    dtype: view.layout().dtype(),
                    shape: view.shape().to_vec(),
                    bytes: Cow::Borrowed(view.bytes().unwrap()),
                })
                .collect();
            assert_eq!(read, members, "{name}");
            let back = QuantTensor::from_members(&spec, ROWS, COLUMNS, &read).unwrap();
            assert_eq!((back.hash(), &back), (tensor.hash(), &tensor), "{name}");
        }
    }
}
