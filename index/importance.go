package index

import (
	"errors"
	"fmt"
	"math/rand/v2"

	grebev1 "grebe/api/grebe/v1"
	"grebe/blend"
	"grebe/catalog"
	"grebe/internal/cli"
	"grebe/internal/human"
	"grebe/kv"
	"grebe/reuse"
	"grebe/serve"
)

// Importance configures how to learn which tokens of items a blended prompt computes again.
type Importance struct {
	Prompts    int // prompts to learn from, each of another user as far as there are
	Candidates int // items per prompt, drawn at random
}

// Learn learns for one model and stores the result in a data_dir. layers is the number of first layers that compute all
// tokens.
func (f *Importance) Learn(w *cli.World, c *catalog.Catalog, m *serve.Model, layers int, dataDir string) error {
	if m.Blend == nil {
		return errors.New("its prompts cannot be blended")
	}
	got, err := f.Measure(w, c, m, layers, catalogUsers(c, f.Prompts, m))
	if errors.Is(err, kv.ErrFull) {
		return fmt.Errorf("%w; a prompt has to fit into the model's part of cache.host_memory: give it more for this "+
			"command, with GREBE_CACHE_HOST_MEMORY=1GiB", err)
	}
	if err != nil {
		return err
	}
	if err := m.Cache.WriteImportance(reuse.ImportanceFile(dataDir, m.Name), got); err != nil {
		return err
	}
	fmt.Fprintf(w.Stdout, "%s: which tokens of items to compute again was learned from %s\n", m.Name,
		human.Count(f.Prompts, "prompt"))
	return nil
}

// Measure learns from users (as tokens), in turn, and from random items of the catalog.
func (f *Importance) Measure(w *cli.World, c *catalog.Catalog, m *serve.Model, layers int,
	users [][]int32) (*blend.Importance, error) {
	items, alike := itemsOf(c, m)
	if len(users) == 0 || len(items) == 0 {
		return nil, errors.New("the catalog has no users and items with texts for this model to learn from")
	}
	bar := NewBar(w.Stderr, w.Terminal)
	defer bar.End()
	r := rand.New(rand.NewPCG(1, uint64(len(items))))
	return m.Cache.LearnImportance(w.Ctx, m.Runner.Do, &reuse.Samples{
		Prompts: f.Prompts, Vocab: m.Vocab, Alike: alike, Order: m.Blend.Order(), Layers: layers,
		Prompt: func(i int) ([]int32, [][]int32, error) {
			user, list := f.fit(r, m, users[i%len(users)], items)
			return user, list, nil
		},
		Progress: func(done, all int) { bar.Update("importance: prompt", done, all) },
	})
}

// fit draws items for a prompt, as many as the model has positions for. The user gets at most half of the positions.
func (f *Importance) fit(r *rand.Rand, m *serve.Model, user []int32, items [][]int32) ([]int32, [][]int32) {
	const others = 1024 // preamble and question, at most
	room := m.Positions - others
	if m.Positions == 0 {
		room = 1 << 20
	}
	user = user[:min(len(user), max(0, room/2))]
	room -= len(user)
	var out [][]int32
	for _, i := range r.Perm(len(items))[:min(f.Candidates, len(items))] {
		if len(items[i]) <= room {
			out, room = append(out, items[i]), room-len(items[i])
		}
	}
	return user, out
}

// itemsOf returns the tokens of all items that a model reads, and a function that says which tokens identify items.
func itemsOf(c *catalog.Catalog, m *serve.Model) (items [][]int32, alike func(token int32) bool) {
	identifier := map[int32]bool{}
	for e := range c.All() {
		it := e.Item
		if it.Identifier >= 0 {
			identifier[it.Identifier] = true
		}
		if tokens, err := m.Prompt.ItemTokens(it); err == nil && len(tokens) > 0 {
			items = append(items, tokens)
		}
	}
	return items, func(token int32) bool { return identifier[token] }
}

// catalogUsers returns the tokens of some users of the catalog.
func catalogUsers(c *catalog.Catalog, most int, m *serve.Model) [][]int32 {
	ids, _ := c.UserIDs("", 1000+10*most, false) // some may have no text
	var users []*grebev1.User
	for _, id := range ids {
		if u, ok := c.User(id); ok {
			users = append(users, u)
		}
	}
	return UsersOf(c, most, m, users)
}

// UsersOf returns the tokens of no more than most of the users, without those that have none.
func UsersOf(c *catalog.Catalog, most int, m *serve.Model, users []*grebev1.User) (out [][]int32) {
	for _, u := range users {
		resolved, _ := c.Resolve(u)
		if tokens, err := m.Prompt.UserTokens(resolved); err == nil && len(tokens) > 0 && len(out) < most {
			out = append(out, tokens)
		}
	}
	return out
}
