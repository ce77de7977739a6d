package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// Setting is one value given outside the file.
type Setting struct {
	Path   string // such as models[0].dtype
	Value  string
	Origin string // such as "flag --device"
}

// Source is where a configuration comes from, each layer over the one before.
type Source struct {
	File  string    // a YAML file; none when empty
	Env   []string  // as os.Environ gives it; GREBE_* are read
	Flags []Setting // what the command line says
}

// Loaded is a configuration and where its values came from.
type Loaded struct {
	Config
	// Unknown lists variables of the environment that look like ours and name no key. They are not
	// errors, since a container runtime sets such names for a service called grebe.
	Unknown []string

	origins map[string]string // by path; absent: the default
}

// Load reads, merges and checks a configuration. The error names every problem and its place.
func Load(src Source) (*Loaded, error) {
	l := &Loaded{Config: *Default(), origins: map[string]string{}}
	if src.File != "" {
		if err := l.readFile(src.File); err != nil {
			return nil, err
		}
	}
	if err := l.readEnv(src.Env); err != nil {
		return nil, err
	}
	if err := l.apply(src.Flags); err != nil {
		return nil, err
	}
	if err := l.placeData(src.File); err != nil {
		return nil, err
	}
	l.finish()
	if err := l.Validate(); err != nil {
		return nil, l.locate(err)
	}
	return l, nil
}

// Origin says where the value at a path came from: "default", a file and line, a variable or a flag.
func (l *Loaded) Origin(path string) string {
	if o, ok := l.origins[path]; ok {
		return o
	}
	return "default"
}

func (l *Loaded) readFile(name string) error {
	if err := read(name, "the configuration", &l.Config, l.origins); err != nil {
		return err
	}
	l.resolve(filepath.Dir(name))
	return nil
}

// read reads a YAML file into a struct, strictly, and notes where values came from.
func read(name, what string, into any, origins map[string]string) error {
	data, err := readBounded(name)
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err == io.EOF {
		return nil // an empty file says nothing
	} else if err != nil {
		return syntaxError(name, data, err)
	}
	if err := dec.Decode(new(yaml.Node)); err != io.EOF {
		return fmt.Errorf("%s: more than one YAML document", name)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil
	}
	d := decoder{
		origins: origins,
		at:      func(n *yaml.Node) string { return fmt.Sprintf("%s:%d", name, n.Line) },
	}
	d.value(root, reflect.ValueOf(into).Elem(), "")
	return errors.Join(d.errs...)
}

// Read reads a YAML file into a struct whose fields have yaml tags, and calls validate. Unknown keys and wrong types
// are errors. An error names the file and the line; for that validate returns a FieldError, or several joined ones.
func Read(name, what string, into any, validate func() error) error {
	l := Loaded{origins: map[string]string{}}
	if err := read(name, what, into, l.origins); err != nil {
		return err
	}
	if err := validate(); err != nil {
		return l.locate(err)
	}
	return nil
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes: not a configuration", name, maxFile)
	}
	return data, err
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line \d+: )?`)

// syntaxError names the line of a mistake.
func syntaxError(name string, data []byte, err error) error {
	return &badSyntax{fmt.Sprintf("%s:%d: %s", name, badLine(data), yamlLine.ReplaceAllString(err.Error(), ""))}
}

// badLine returns the first line with which data is not YAML, whatever follows. The library names the line at which the
// list or mapping around the mistake begins.
func badLine(data []byte) int {
	lines := bytes.SplitAfter(data, []byte("\n"))
	good := func(n int) bool { return yaml.Unmarshal(bytes.Join(lines[:n], nil), new(yaml.Node)) == nil }
	n := len(lines)
	for step := 1 + n/mostTries; n > 1; n -= min(step, n-1) {
		if good(n - 1) {
			break
		}
	}
	return n
}

// mostTries bounds how often a file is parsed to find a line of it: of longer files the line is near the mistake.
const mostTries = 300

// ErrSyntax says that a file is not YAML.
var ErrSyntax = errors.New("not YAML")

type badSyntax struct{ text string }

func (e *badSyntax) Error() string        { return e.text }
func (e *badSyntax) Is(target error) bool { return target == ErrSyntax }

// placeData puts the default folder of data beside the configuration, like every other path, so that a server finds its
// data wherever it is started from. A folder that was made in the working directory is not passed over silently.
func (l *Loaded) placeData(file string) error {
	if _, given := l.origins["data_dir"]; given || file == "" {
		return nil
	}
	beside := filepath.Join(filepath.Dir(file), l.DataDir)
	if !exists(beside) && exists(l.DataDir) && !sameFolder(filepath.Dir(file)) {
		return fmt.Errorf("%s does not set data_dir, which is then %s; but %s is in the working directory: "+
			"set data_dir to the one to use", file, beside, l.DataDir)
	}
	l.DataDir = beside
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// sameFolder reports whether a folder is the working directory.
func sameFolder(dir string) bool {
	a, err := os.Stat(dir)
	b, err2 := os.Stat(".")
	return err == nil && err2 == nil && os.SameFile(a, b)
}

// resolve makes the paths that a file gave relative to its folder.
func (l *Loaded) resolve(dir string) {
	fix := func(path string, p *string) {
		if _, given := l.origins[path]; given && *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	fix("data_dir", &l.DataDir)
	fix("record", &l.Record)
	fix("catalog.items", &l.Catalog.Items)
	fix("catalog.users", &l.Catalog.Users)
	fix("tls.cert", &l.TLS.Cert)
	fix("tls.key", &l.TLS.Key)
	fix("tls.client_ca", &l.TLS.ClientCA)
	fix("cluster.tls.cert", &l.Cluster.TLS.Cert)
	fix("cluster.tls.key", &l.Cluster.TLS.Key)
	fix("cluster.tls.ca", &l.Cluster.TLS.CA)
	fix("auth.keys", &l.Auth.Keys)
	for i := range l.Models {
		fix(fmt.Sprintf("models[%d].path", i), &l.Models[i].Path)
	}
	for i := range l.Tables {
		fix(fmt.Sprintf("tables[%d].file", i), &l.Tables[i].File)
	}
}

// clients are variables that others read: the client commands (see `grebe rank --help`), and the cache of kernels.
var clients = []string{"GREBE_API_KEY", "GREBE_SERVER", "GREBE_KERNEL_CACHE"}

// readEnv takes GREBE_ and the key in capitals, dots and brackets as underscores: GREBE_SLO_MS,
// GREBE_CACHE_HOST_MEMORY, GREBE_MODELS_0_PATH.
func (l *Loaded) readEnv(env []string) error {
	// One more model and table than there are can be made by a variable, so their names are known too.
	probe := l.Config
	probe.Models, probe.Tables = append(slices.Clone(l.Models), Model{}), append(slices.Clone(l.Tables), Table{})
	paths := map[string]string{}
	leaves(reflect.ValueOf(&probe).Elem(), "", func(path string, _ reflect.Value) {
		paths[EnvName(path)] = path
	})
	env = slices.Sorted(slices.Values(env))
	var settings []Setting
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "GREBE_") || slices.Contains(clients, name) {
			continue
		}
		path, ok := paths[name]
		if !ok {
			l.Unknown = append(l.Unknown, name)
			continue
		}
		settings = append(settings, Setting{Path: path, Value: value, Origin: "env " + name})
	}
	return l.apply(settings)
}

// EnvName returns the variable that sets the value at a path.
func EnvName(path string) string {
	r := strings.NewReplacer("[", "_", "]", "", ".", "_")
	return "GREBE_" + strings.ToUpper(r.Replace(path))
}

func (l *Loaded) apply(settings []Setting) error {
	var errs []error
	for _, s := range settings {
		d := decoder{origins: l.origins, at: func(*yaml.Node) string { return s.Origin }}
		if err := d.set(&l.Config, s.Path, s.Value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Origin, err))
		}
	}
	return errors.Join(errs...)
}

// finish fills in what follows from other values.
func (l *Loaded) finish() {
	for i := range l.Models {
		if m := &l.Models[i]; m.Name == "" && m.Path != "" {
			m.Name = filepath.Base(filepath.Clean(m.Path))
		}
	}
}

// locate puts the origin of a value before each complaint about it.
func (l *Loaded) locate(err error) error {
	var out []error
	for _, e := range flatten(err) {
		var f *FieldError
		if errors.As(e, &f) {
			e = fmt.Errorf("%s: %w", l.nearest(f.Path), e)
		}
		out = append(out, e)
	}
	return errors.Join(out...)
}

// nearest is the origin of a path, or else of what it stands in.
func (l *Loaded) nearest(path string) string {
	for p := path; p != ""; p = p[:max(strings.LastIndexAny(p, ".["), 0)] {
		if o, ok := l.origins[p]; ok {
			return o
		}
	}
	return "default"
}

func flatten(err error) []error {
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range many.Unwrap() {
		out = append(out, flatten(e)...)
	}
	return out
}
