package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"grebe/deploy/tree"
)

// docs is the folder of documents in a package.
const docs = "/usr/share/doc/grebe"

// sharedFiles returns the files that are the same for all architectures: documents, man pages and completions.
func (r *release) sharedFiles(binary string) ([]tree.File, error) {
	files, err := completions(binary)
	if err != nil {
		return nil, err
	}
	commands, err := os.ReadFile(filepath.Join(r.source, "docs/reference/commands.md"))
	if err != nil {
		return nil, err
	}
	pages, err := manPages(string(commands), r.version.semantic, r.when)
	if err != nil {
		return nil, fmt.Errorf("docs/reference/commands.md: %w", err)
	}
	for name, text := range pages {
		packed, err := tree.Gzip(text)
		if err != nil {
			return nil, err
		}
		files = append(files, tree.File{Path: "/usr/share/man/man1/" + name + ".gz", Mode: 0o644, Data: packed})
	}
	texts, err := folder(filepath.Join(r.source, "docs"), docs, func(name string) bool { return path.Ext(name) != ".md" })
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"NOTICE", "CHANGELOG.md", "SECURITY.md"} {
		texts = append(texts, tree.File{Path: docs + "/" + name, Mode: 0o644, From: filepath.Join(r.source, name)})
	}
	for _, name := range []string{"alerts.yaml", "grafana.json"} {
		texts = append(texts, tree.File{Path: docs + "/examples/" + name, Mode: 0o644,
			From: filepath.Join(r.source, "deploy", name)})
	}
	return append(files, texts...), nil
}

// folder returns the files of a folder that are not skipped, with their paths below another one.
func folder(root, below string, skip func(name string) bool) ([]tree.File, error) {
	var files []tree.File
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || skip(name) {
			return err
		}
		files = append(files, tree.File{Path: below + "/" + name, Mode: 0o644, From: filepath.Join(root, name)})
		return nil
	})
	return files, err
}

// replaceOnce replaces a text that must be there exactly once.
func replaceOnce(text []byte, old, with string) ([]byte, error) {
	if n := bytes.Count(text, []byte(old)); n != 1 {
		return nil, fmt.Errorf("%q is there %d times, want once", old, n)
	}
	return bytes.Replace(text, []byte(old), []byte(with), 1), nil
}
