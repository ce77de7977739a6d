package index

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/internal/cli"
	"grebe/internal/human"
	"grebe/kv"
	"grebe/kv/proto"
	"grebe/model"
	"grebe/model/safetensors"
	"grebe/model/tokenizer"
	"grebe/reuse"
	"grebe/serve"
)

// Prototypes configures how a pool of prototypes is made.
type Prototypes struct {
	Users  int     // most users whose histories are read
	Bytes  int64   // most bytes of KV
	Radius float32 // largest distance of contexts that count as the same; 0: the default
	Least  int     // least number of users whose histories have a context; 0: the default
	Fresh  bool    // discard the existing prototypes
}

// Make makes the prototypes of one model, whose checkpoint is in folder, and stores them in a data_dir.
func (f *Prototypes) Make(w *cli.World, c *catalog.Catalog, m *serve.Model, folder, dataDir string) error {
	ids, _ := c.UserIDs("", f.Users, false)
	if len(ids) == 0 {
		return errors.New("the catalog has no users to make prototypes of")
	}
	users := make([]*grebev1.User, 0, len(ids))
	for _, id := range ids {
		if u, ok := c.User(id); ok {
			users = append(users, u)
		}
	}
	p, closer, err := PoolOf(c, m, folder, users)
	if err != nil {
		return err
	}
	defer closer.Close()
	bar := NewBar(w.Stderr, w.Terminal)
	p.Bytes, p.Fresh, p.Progress = f.Bytes, f.Fresh, bar.Prototypes
	p.Config = proto.Config{Radius: f.Radius, Least: f.Least}
	built, err := m.Cache.BuildPrototypes(w.Ctx, m.Runner.Do, reuse.PrototypesFile(dataDir, m.Name), p)
	bar.End()
	if built != nil {
		fmt.Fprintf(w.Stdout, "%s: %s (%s of KV) of %s, %d new; %d of %s computed from %s",
			m.Name, human.Count(built.Prototypes, "prototype"), human.Bytes(built.Bytes), human.Count(len(p.Users), "user"),
			built.Added, built.Computed, human.Count(built.Pages, "page"), human.Count(built.Tokens, "token"))
		if built.Lost > 0 {
			fmt.Fprintf(w.Stdout, ", %s whose users are gone", human.Count(built.Lost, "page"))
		}
		fmt.Fprintln(w.Stdout)
	}
	if errors.Is(err, kv.ErrFull) {
		return fmt.Errorf("%w; a history has to fit into the model's part of cache.host_memory: give it more for this "+
			"command, with GREBE_CACHE_HOST_MEMORY=1GiB", err)
	}
	if err != nil {
		return fmt.Errorf("%w; run the same command again to go on", err)
	}
	return nil
}

// PoolOf returns a pool with users' histories in memory, as tokens, and what prototypes need to know about the model.
// The closer MUST be closed when the pool is no longer used.
func PoolOf(c *catalog.Catalog, m *serve.Model, dir string, users []*grebev1.User) (*reuse.Pool, io.Closer, error) {
	p := &reuse.Pool{}
	var histories [][]int32
	for _, u := range users {
		resolved, _ := c.Resolve(u)
		tokens, err := m.Prompt.UserTokens(resolved)
		if err != nil || len(tokens) == 0 {
			continue // without text for this model there is no history to learn from
		}
		if most := m.Positions - len(m.Prompt.Preamble()); m.Positions > 0 && len(tokens) > most {
			tokens = tokens[:most]
		}
		p.Users, histories = append(p.Users, u.Id), append(histories, tokens)
	}
	if len(histories) == 0 {
		return nil, nil, errors.New("no user has a history that this model reads")
	}
	p.History = func(i int) ([]int32, error) { return histories[i], nil }
	set, err := safetensors.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	if p.Embeddings, err = EmbeddingsOf(set); err == nil {
		p.Natural, err = naturalTokens(c, dir, m.Vocab)
	}
	if err != nil {
		return nil, nil, errors.Join(err, set.Close())
	}
	return p, set, nil
}

// EmbeddingsOf returns a function that reads tokens' embeddings from a checkpoint.
func EmbeddingsOf(set *safetensors.Set) (func(token int32) []float32, error) {
	t, err := set.Tensor("model." + model.Embedding)
	if err != nil {
		if t, err = set.Tensor(model.Embedding); err != nil {
			return nil, err
		}
	}
	size := len(t.Data) / t.Rows
	return func(token int32) []float32 {
		if token < 0 || int(token) >= t.Rows {
			return nil
		}
		row := t
		row.Rows, row.Data = 1, t.Data[int(token)*size:(int(token)+1)*size]
		return safetensors.Floats(row)
	}, nil
}

// naturalTokens says which tokens may have prototypes: pieces of natural language that identify no item.
func naturalTokens(c *catalog.Catalog, dir string, vocab int) (func(token int32) bool, error) {
	tok, err := tokenizer.Load(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		return nil, fmt.Errorf("which tokens are numbers, identifiers and delimiters: %w", err)
	}
	natural := make([]bool, vocab)
	for i := range natural {
		text, ok := tok.TokenText(int32(i))
		natural[i] = ok && proto.Natural(text)
	}
	for e := range c.All() {
		it := e.Item
		if it.Identifier >= 0 && int(it.Identifier) < vocab {
			natural[it.Identifier] = false
		}
	}
	return func(token int32) bool { return token >= 0 && int(token) < vocab && natural[token] }, nil
}

// Bar shows the progress of a pool: on a terminal a line that is updated, else a line now and then.
type Bar struct {
	out      io.Writer
	terminal bool
	shown    time.Time
	part     string
}

// NewBar makes a Bar that writes to out.
func NewBar(out io.Writer, terminal bool) *Bar { return &Bar{out: out, terminal: terminal} }

// Prototypes shows the progress of a part of a pool.
func (b *Bar) Prototypes(part string, done, total int) {
	b.Update("prototypes: "+part, done, total)
}

// Update shows the progress of a part.
func (b *Bar) Update(part string, done, total int) {
	every := 10 * time.Second
	if b.terminal {
		every = 200 * time.Millisecond
	}
	if part == b.part && time.Since(b.shown) < every {
		return
	}
	b.part, b.shown = part, time.Now()
	line := fmt.Sprintf("%s %d of %d", part, done, total)
	if b.terminal {
		fmt.Fprintf(b.out, "\r%s\x1b[K", line)
		return
	}
	fmt.Fprintln(b.out, line)
}

// End ends the line.
func (b *Bar) End() {
	if b.terminal {
		fmt.Fprintln(b.out)
	}
}
