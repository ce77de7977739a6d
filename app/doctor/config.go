package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"grebe/catalog"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/internal/readfile"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/model/safetensors"
	"grebe/model/tokenizer"
	"grebe/prompt"
)

// memoryPerCheckpoint is the memory of a served model per byte of its checkpoint, including what the system needs.
const memoryPerCheckpoint = 1.3

// examineConfig checks what a configuration file names. Without a file it checks the default addresses.
func examineConfig(r *Report, file string, env []string, free int64) {
	if file == "" {
		def := config.Default()
		ports(r, def, Warn)
		return
	}
	cfg, err := config.Load(config.Source{File: file, Env: env})
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			r.add("configuration", Fail, remedyOf(err, line), "%s", strings.TrimSpace(line))
		}
		return
	}
	r.add("configuration", OK, "", "%s", file)
	for _, name := range cfg.Unknown {
		r.add("environment", Warn, "correct its name, or unset it", "%s names no key of the configuration", name)
	}
	room(r, &cfg.Config, free)
	for i := range cfg.Tables {
		reachable(r, &cfg.Tables[i])
	}
	writable(r, cfg.DataDir)
	damage(r, cfg.DataDir)
	readable(r, "auth.keys", cfg.Auth.Keys)
	readable(r, "tls.cert", cfg.TLS.Cert)
	readable(r, "tls.key", cfg.TLS.Key)
	readable(r, "tls.client_ca", cfg.TLS.ClientCA)
	loadable(r, "catalog.items", cfg.Catalog.Items, catalog.CheckItems)
	loadable(r, "catalog.users", cfg.Catalog.Users, catalog.CheckUsers)
	ports(r, &cfg.Config, Fail)
	examineCluster(r, &cfg.Cluster)
}

// remedyOf says what to do about one line of the error of loading a configuration.
func remedyOf(err error, line string) string {
	switch {
	case errors.As(err, new(*fs.PathError)):
		return "name a file that can be read with -c FILE"
	case errors.Is(err, config.ErrSyntax):
		return "correct it there, or in the line before: often one is indented by another number of spaces"
	case strings.Contains(line, "unknown key"):
		return "correct the key; grebe serve --model DIR --print-config prints all keys with their defaults"
	}
	return "correct it there"
}

// room checks the models' folders, and whether memory suffices for their weights and caches.
func room(r *Report, cfg *config.Config, free int64) {
	var need int64
	caches := cfg.Cache.HostMemory.Bytes // a share of the machine's memory always fits
	loaded := map[config.Sharing]bool{}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		size := checkpoint(r, m)
		if m.CannotRank() && !hstu.Is(m.Path) {
			key := fmt.Sprintf("models[%d].prompt.instruction", i)
			r.add("model "+m.Name, Warn, "set "+key+", the question after the items",
				"%s is missing: requests that rank are refused", key)
		}
		if m.AsksNothing() && !hstu.Is(m.Path) {
			key := fmt.Sprintf("models[%d].prompt.instruction", i)
			r.add("model "+m.Name, Warn, "set "+key+`, such as "Is this a good recommendation? Answer yes or no:"`,
				"%s is missing: scores are how likely yes is behind an item, but nobody asked", key)
		}
		if key := m.Sharing(); !loaded[key] {
			loaded[key] = true
			need += size
			caches += m.HostMemory.Bytes
		}
	}
	total := int64(memoryPerCheckpoint * float64(need))
	switch {
	case free <= 0: // unknown
	case total > free:
		r.add("memory", Fail, "free some, take a smaller model or a machine with more",
			"the models need about %s, but %s are free",
			gigabytes(total), gigabytes(free))
	case total > free-caches:
		r.add("memory", Warn, "give cache.host_memory or models[].host_memory less",
			"the models need about %s and their caches up to %s, but %s are free", gigabytes(total), gigabytes(caches),
			gigabytes(free))
	}
}

// weights returns the size of a folder's tensors in bytes, if they can be opened.
func weights(r *Report, check, dir string) (int64, bool) {
	set, err := safetensors.Open(dir)
	if err != nil {
		r.add(check, Fail, orPull(err, "download the folder again, all shards of it"), "%v", err)
		return 0, false
	}
	size := set.Bytes()
	if err := set.Close(); err != nil {
		r.add(check, Warn, "", "%v", err)
	}
	return size, true
}

// orPull returns a remedy, or the one for files that Git LFS left out.
func orPull(err error, remedy string) string {
	if errors.Is(err, readfile.ErrPointer) {
		return "run git lfs pull in the folder, or download it with hf download"
	}
	return remedy
}

// checkpoint checks a model's folder without loading it, and returns its size in bytes.
func checkpoint(r *Report, m *config.Model) int64 {
	check := "model " + m.Name
	if hstu.Is(m.Path) {
		if _, err := hstu.ReadConfig(m.Path); err != nil {
			r.add(check, Fail, "model/hstu/FORMAT.md says what the folder of a model of events has", "%v", err)
			return 0
		}
		size, ok := weights(r, check, m.Path)
		if ok {
			r.add(check, OK, "", "HSTU, %s in %s", gigabytes(size), m.Path)
		}
		return size
	}
	described, err := model.ReadConfig(m.Path)
	if err != nil {
		r.add(check, Fail, "path must be a Hugging Face folder: config.json, *.safetensors, tokenizer.json", "%v", err)
		return 0
	}
	if !slices.Contains(model.Architectures(), described.Architecture) {
		r.add(check, Fail, "known are "+strings.Join(model.Architectures(), ", "), "architecture %s is unknown",
			described.Architecture)
		return 0
	}
	size, ok := weights(r, check, m.Path)
	if !ok {
		return 0
	}
	r.add(check, OK, "", "%s, %s in %s", described.Architecture, gigabytes(size), m.Path)
	file := filepath.Join(m.Path, "tokenizer.json")
	switch tok, err := tokenizer.Load(file); {
	case errors.Is(err, fs.ErrNotExist) && hasText(m):
		r.add(check, Fail, "put the model's tokenizer.json into its folder, or give tokens in place of texts: {tokens: [3]}",
			"no tokenizer: the configuration has texts")
	case errors.Is(err, fs.ErrNotExist):
		r.add(check, Warn, "put the model's tokenizer.json into its folder",
			`no tokenizer: requests must give tokens in place of texts, such as {"tokens": [3]}`)
	case err != nil:
		r.add(check, Fail, orPull(err, "only byte-level BPE is known (Qwen, Llama 3, GPT-2)"), "%v", err)
	default:
		r.add(check, OK, "", "%s", file)
		answers(r, check, &m.Scoring, tok, described.Vocab)
	}
	if m.ReadsChatTemplate() {
		chats(r, check, m.Path)
	}
	return size
}

// chats checks the chat template of a checkpoint.
func chats(r *Report, check, dir string) {
	var c prompt.ChatTemplate
	var err error
	if c.Source, c.Tokens, err = tokenizer.ChatTemplate(dir); err == nil && c.Source != "" {
		err = c.Check()
	}
	if err != nil {
		r.add(check, Fail, "set prompt.chat_message, which replaces it (docs/how-to/completions.md)", "chat template: %v",
			err)
	}
}

// hasText reports whether a model's configuration has texts that its tokenizer must read.
func hasText(m *config.Model) bool {
	p := &m.Prompt
	texts := p.Preamble.Text + p.LeadIn.Text + p.Instruction.Text + p.GenerateInstruction.Text
	return texts+m.Scoring.Yes.Text+m.Scoring.No.Text != ""
}

// answers checks the tokens that pointwise scoring compares.
func answers(r *Report, check string, s *config.Scoring, tok *tokenizer.Tokenizer, vocab int) {
	if s.Kind != "pointwise" {
		return
	}
	for _, t := range []config.Token{s.Yes, s.No} {
		id, ok := tok.TokenID(t.Text)
		if t.ByID {
			id, ok = t.ID, true
		}
		switch {
		case !ok:
			r.add(check, Fail, "name answers of one token: try with or without the leading space, or give its number",
				"scoring: %s is not one token of the vocabulary", t)
		case id < 0 || int(id) >= vocab:
			r.add(check, Fail, "give a token below vocab_size of config.json",
				"scoring: token %d is outside the vocabulary of %d", id, vocab)
		}
	}
}

// writable tries to create a file in the data folder, or in the nearest parent that exists.
func writable(r *Report, dir string) {
	at := dir
	for {
		if _, err := os.Lstat(at); err == nil || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	f, err := os.CreateTemp(at, ".grebe-doctor-")
	if err != nil {
		r.add("data_dir", Fail, "name a folder that can be written to", "%s: %v", dir, err)
		return
	}
	f.Close()
	if err := os.Remove(f.Name()); err != nil {
		r.add("data_dir", Warn, "", "%v", err)
		return
	}
	r.add("data_dir", OK, "", "%s", dir)
}

func readable(r *Report, check, file string) {
	if file == "" {
		return
	}
	f, err := os.Open(file)
	if err != nil {
		r.add(check, Fail, "correct the path: it is relative to the configuration's folder", "%v", err)
		return
	}
	f.Close()
	r.add(check, OK, "", "%s", file)
}

// mostChecked are the lines of a file of the catalog that are read: it takes a second.
const mostChecked = 200_000

// loadable reads a file of the catalog.
func loadable(r *Report, check, file string, read func(file string, most int) (n int, all bool, err error)) {
	if file == "" {
		return
	}
	switch n, all, err := read(file, mostChecked); {
	case errors.As(err, new(*fs.PathError)):
		r.add(check, Fail, "correct the path: it is relative to the configuration's folder", "%v", err)
	case err != nil:
		r.add(check, Fail, "correct the line", "%v", err)
	case !all:
		r.add(check, OK, "", "%s: the first %d lines are in order", file, n)
	default:
		r.add(check, OK, "", "%s: %s", file, human.Count(n, "line"))
	}
}

// reachable opens a table's file, or tries to connect to each address of its store.
func reachable(r *Report, t *config.Table) {
	readable(r, "table "+t.Name, t.File)
	for _, addr := range t.Addresses {
		conn, err := net.DialTimeout("tcp", addr, 2*time.Second)
		if err != nil {
			r.add("table "+t.Name, Fail, "start Redis or Valkey there, or correct addresses; until it answers, every row is "+
				"the table's default", "%v", err)
			continue
		}
		conn.Close()
		r.add("table "+t.Name, OK, "", "%s answers", addr)
	}
}

// ports tries to listen on a server's addresses.
func ports(r *Report, c *config.Config, bad Status) {
	for _, p := range []struct{ key, addr string }{
		{"listen", c.Listen}, {"admin_listen", c.AdminListen}, {"grpc_listen", c.GRPCListen},
	} {
		if p.addr != "" {
			free(r, p.key, p.addr, bad)
		}
	}
}

// free tries to listen on an address, and reports whether it can.
func free(r *Report, key, addr string, bad Status) bool {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		r.add(key, bad, fmt.Sprintf("stop what uses the address, or set %s to another", key), "%v", err)
		return false
	}
	ln.Close()
	r.add(key, OK, "", "%s is free", addr)
	return true
}
