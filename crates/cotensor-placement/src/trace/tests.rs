use super::*;
use cotensor_core::ErrorKind;

const GOOD: &str = r#"{
    "tensors": [{"id": "a", "size_bytes": 8}, {"id": 7, "size_bytes": 4}],
    "operations": [
        {"name": "first", "uses": [7, "a", "a"], "compute_us": 1.5, "cpu_us": 3, "workspace_bytes": 2, "writes": ["a"]},
        {"name": "second", "uses": [], "compute_us": 0}
    ],
    "periods": 3,
    "made_by": "a test"
}"#;

#[test]
fn trace_is_read_with_ids_and_microseconds() {
    let trace = Trace::from_json(GOOD).unwrap();
    assert_eq!((trace.sizes(), trace.periods()), (vec![8, 4], 3));
    let first = &trace.operations()[0];
    assert_eq!((&first.uses, &first.writes), (&vec![0, 1], &vec![0]));
    assert_eq!((first.compute_ns, first.cpu_ns, trace.needed_bytes(first)), (1500, Some(3000), 14));
    assert!(!trace.runs_on_cpu());
    assert_eq!((trace.compute_ns(), trace.used()), (1500, vec![0, 1]));
}

#[test]
fn bad_traces_are_errors_that_name_the_field() {
    for (from, to, names) in [
        (r#""periods": 3"#, r#""periods": 0"#, &["periods"][..]),
        (r#""periods": 3"#, r#""periods": 4000000000"#, &["periods"]),
        (r#"[7, "a", "a"]"#, r#"[7, "b"]"#, &["operations[0].uses", "\"b\""]),
        (r#"["a"]}"#, r#"["b"]}"#, &["operations[0].writes", "\"b\""]),
        (r#""uses": [7, "a", "a"]"#, r#""uses": [7]"#, &["operations[0].writes"]),
        (r#""id": 7"#, r#""id": "a""#, &["operations[0].uses", "\"7\""]),
        (r#""compute_us": 1.5"#, r#""compute_us": -1"#, &["operations[0].compute_us", "-1"]),
        (r#""compute_us": 1.5"#, r#""compute_us": 1e30"#, &["operations[0].compute_us"]),
        (r#""cpu_us": 3"#, r#""cpu_us": -3"#, &["operations[0].cpu_us"]),
        (r#""size_bytes": 8"#, r#""size_bytes": 9007199254740992"#, &["tensors[0].size_bytes"]),
        (r#""size_bytes": 8"#, r#""size_bytes": -8"#, &["not a trace", "-8"]),
        (r#""size_bytes": 8"#, r#""size": 8"#, &["size_bytes"]),
        (r#""compute_us": 1.5, "#, "", &["compute_us"]),
        (r#""workspace_bytes": 2"#, r#""workspace_bytes": 1e99"#, &["not a trace"]),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let error = Trace::from_json(&GOOD.replace(from, to)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        for name in names {
            assert!(error.to_string().contains(name), "{to} should name {name}: {error}");
        }
    }
    let twice = GOOD.replace(r#""id": 7"#, r#""id": "a""#).replace("[7, ", "[");
    assert!(Trace::from_json(&twice).unwrap_err().to_string().contains("tensors[1].id"));
    assert!(Trace::from_json(r#"{"tensors": [], "operations": []}"#).unwrap_err().to_string().contains("operations"));
    assert!(Trace::from_json("[").is_err());
}
