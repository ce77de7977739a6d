// Package dashboard is the web page at /: what the server is doing, a playground for its models, its catalog, and the
// cluster that it belongs to.
//
// The page consists of the files in this folder. There is no build step, and nothing is loaded from other hosts. The
// page gets its data from the server's API, with the key that the reader enters, so it needs no access of its own.
package dashboard

import (
	"bytes"
	"embed"
	"html/template"
	"io/fs"
	"path"
)

//go:embed index.html *.js *.css *.svg
var files embed.FS

// Policy is the Content-Security-Policy of the page: only this server's own files.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

var page = template.Must(template.ParseFS(files, "index.html"))

// About is the data in the page itself.
type About struct {
	Node, Version string
	SLOMillis     int64
	Fleet         bool // the server belongs to a cluster
	Story         bool // the first screen leads through a ranking
}

// Page returns the page.
func Page(a About) ([]byte, error) {
	var b bytes.Buffer
	err := page.Execute(&b, a)
	return b.Bytes(), err
}

var kinds = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml"}

// Has reports whether the page has a file of this name.
func Has(name string) bool {
	if kinds[path.Ext(name)] == "" {
		return false
	}
	_, err := fs.Stat(files, name)
	return err == nil
}

// File returns one of the page's files and its content type. It panics if there is none: see Has.
func File(name string) (body []byte, kind string) {
	body, err := files.ReadFile(name)
	if err != nil {
		panic(err) // the caller did not call Has
	}
	return body, kinds[path.Ext(name)]
}
