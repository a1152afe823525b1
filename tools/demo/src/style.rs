//! The style of HTML reports: one for light and dark screens, from the width of a telephone on.

/// The common style. A class of a line or a bar sets `--line` to one of the colours.
const STYLE: &str = ":root{color-scheme:light dark;--ground:#fff;--text:#222;--quiet:#59616a;--rule:#d7dbdf;--green:#1a7f4b;--red:#b3412e;\
    --gold:#856207;--violet:#7a4fa3;--blue:#3f66a3;--teal:#0b7285}\
    @media(prefers-color-scheme:dark){:root{--ground:#15181b;--text:#e4e7ea;--quiet:#a3acb4;--rule:#3a4046;--green:#5fd39a;--red:#ff8f7a;\
    --gold:#e0b64a;--violet:#c79bf0;--blue:#85aef5;--teal:#66d9e8}}\
    *{box-sizing:border-box}body{background:var(--ground);color:var(--text);font:15px/1.5 sans-serif;max-width:720px;margin:2em auto;\
    padding:0 12px;overflow-wrap:anywhere}\
    .scroll{overflow-x:auto}table{border-collapse:collapse;overflow-wrap:normal}td,th{padding:2px 12px;text-align:right;vertical-align:top}\
    td{white-space:nowrap}td:first-child,th:first-child{padding-left:0;text-align:left}td:first-child,.words td:last-child{white-space:normal}\
    .words td:last-child,.words th:last-child{text-align:left}tr[class]{color:var(--line)}\
    .legend span{display:inline-block;margin-right:1em}.legend b{color:var(--line)}\
    .chart{display:grid;grid-template-columns:4.6rem minmax(0,1fr);color:var(--quiet);font-size:12px;margin:.5em 0 1em}\
    .chart svg{border:1px solid var(--rule);height:14rem;width:100%}.chart line{stroke:var(--rule)}\
    .chart polyline{fill:none;stroke:var(--line);stroke-width:2}\
    .y,.x{overflow-wrap:normal;position:relative;white-space:nowrap}.x{grid-column:2;height:1.6em}\
    .y span{position:absolute;right:6px;transform:translateY(50%)}.x span{position:absolute;transform:translateX(-50%)}\
    .x span:first-child{transform:none}.x span:last-child{transform:translateX(-100%)}\
    .panels{display:grid;gap:0 1.5em;grid-template-columns:repeat(auto-fit,minmax(min(300px,100%),1fr))}.panels h3{font-size:1em;margin:0}\
    .panels svg{height:9rem}.panels .x span:nth-last-child(even){display:none}\
    @media(max-width:520px){td,th{font-size:12px;padding:2px 3px}.x span:nth-last-child(even){display:none}}";

/// The beginning of a page, up to its body. `more` is appended to the style.
pub fn page_start(title: &str, more: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}{more}</style>"
    )
}
