"""A hook of mkdocs: links to files of the repository outside of docs/ become links to the repository's own pages."""
import os
import re

LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]*)")


def on_page_markdown(markdown, page, config, files):
    folder = os.path.dirname(page.file.src_uri)
    root = os.path.dirname(config.config_file_path)

    def target(match):
        path = os.path.normpath(os.path.join("docs", folder, match[2]))
        if path.startswith("docs/") or path == "docs" or not os.path.exists(os.path.join(root, path)):
            return match[0]
        kind = "tree" if os.path.isdir(os.path.join(root, path)) else "blob"
        return f"{match[1]}{config.repo_url}/{kind}/main/{path}"

    return LINK.sub(target, markdown)
