"""Tests of imports_typescript.py: small programs in a temporary folder."""
import tempfile
import unittest
from pathlib import Path

from imports_typescript import Program
from source_tree import circles_of


class TypeScriptImports(unittest.TestCase):
    def circles(self, **files):
        """The circles of a program with these files (`a__b` is a/b.ts)."""
        return circles_of({name.replace("__", "/"): text for name, text in files.items()}, ".ts", Program)

    def test_finds_imports_of_values_and_types(self):
        found = self.circles(
            a='import { b } from "./b.js";\nexport class A {}',
            b='import {\n  c,\n  type C,\n} from "./c.js";\nexport const b = c;',
            c='import type { A } from "./a.js";\nexport type C = A;',
        )
        self.assertEqual(found, [["a", "b", "c"]])

    def test_import_at_run_time_counts(self):
        self.assertEqual(self.circles(a='import * as b from "./b.js";', b='await import("./a.js");'), [["a", "b"]])
        self.assertEqual(self.circles(a='import "./b.js";', b='type A = import("./a.js").A;'), [["a", "b"]])

    def test_reexport_is_followed_and_is_no_import(self):
        found = self.circles(
            index='export * from "./a.js";\nexport { B as C } from "./b.js";',
            a='import { C } from "./index.js";\nexport class A extends C {}',
            b="export class B {}",
        )
        self.assertEqual(found, [])
        found = self.circles(
            index='export * from "./a.js";\nexport { B as C } from "./b.js";',
            a='import { C } from "./index.js";\nexport class A extends C {}',
            b='import type { A } from "./index.js";\nexport class B {}',
        )
        self.assertEqual(found, [["a", "b"]])

    def test_ignores_comments_and_texts(self):
        found = self.circles(a='import { b } from "./b.js";', b='// import { a } from "./a.js";\nexport const b = `\nimport "./a.js"`;')
        self.assertEqual(found, [])

    def test_describes_each_edge_with_file_and_line(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a.ts").write_text('// A.\nimport { b, c } from "./b.js";\n')
            Path(folder, "b.ts").write_text('export const b = 1;\nexport const c = await import("./a.js");\n')
            made = Program(folder)
            lines = list(made.describe(made.circles()[0]))
        self.assertEqual(lines[0], f"{folder}/a.ts:2: b, c -> {folder}/b.ts")
        self.assertEqual(lines[1], f"{folder}/b.ts:2: ./a.js -> {folder}/a.ts")


if __name__ == "__main__":
    unittest.main()
