package catalog

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
	"grebe/prompt"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	c := New(Options{})
	n, err := c.LoadItems(write(t, "items.ndjson", `{"id":"i1","text":"a","identifier":731,"codes":[3,17,9],`+
		`"attributes":{"category":["toys"]}}

  `+"\r\n"+`{"id":"i2","tokens":[1,2]}`))
	if err != nil || n != 2 {
		t.Fatalf("%d items, %v", n, err)
	}
	n, err = c.LoadUsers(write(t, "users.ndjson", `{"id":"u1","history":["i2","gone","i1"]}
{"id":"u2","events":[{"item":"i1","time":1700000000,"action":3,"features":{}},{"item":"x"}],"text":"t"}
{"id":"u3","history":["i1"],"events":[{"item":"i2"}],"tokens":[]}
`))
	if err != nil || n != 3 {
		t.Fatalf("%d users, %v", n, err)
	}
	want := &prompt.Item{ID: "i1", Text: "a", Identifier: 731, Codes: []int32{3, 17, 9},
		Attributes: map[string][]string{"category": {"toys"}}}
	i1, ok := c.Item("i1")
	if !ok || !reflect.DeepEqual(i1, want) {
		t.Errorf("i1 is %+v, want %+v", i1, want)
	}
	i2, ok := c.Item("i2")
	if !ok || !reflect.DeepEqual(i2, &prompt.Item{ID: "i2", Tokens: []int32{1, 2}, Identifier: -1}) {
		t.Errorf("i2 is %+v", i2)
	}
	for id, want := range map[string]struct {
		user    prompt.User
		unknown int
	}{
		"u1": {prompt.User{ID: "u1", History: []*prompt.Item{i2, i1}}, 1},
		"u2": {prompt.User{ID: "u2", Text: "t", History: []*prompt.Item{i1}}, 1},
		"u3": {prompt.User{ID: "u3", Tokens: []int32{}, History: []*prompt.Item{i1}}, 0},
	} {
		m, ok := c.User(id)
		if !ok {
			t.Fatalf("no user %s", id)
		}
		u, unknown := c.Resolve(m)
		if !reflect.DeepEqual(*u, want.user) || unknown != want.unknown {
			t.Errorf("%s is %+v with %d unknown, want %+v with %d", id, *u, unknown, want.user, want.unknown)
		}
	}
	m, _ := c.User("u2")
	m = &grebev1.User{Id: "u2", History: m.History, Events: m.Events,
		NewEvents: []*grebev1.Event{{Item: "i2"}, {Item: "none"}}}
	if u, unknown := c.Resolve(m); !reflect.DeepEqual(u.History, []*prompt.Item{i1, i2}) || unknown != 2 {
		t.Errorf("with new events u2 is %+v with %d unknown", *u, unknown)
	}
	if items, users, version := c.Counts(); items != 2 || users != 3 || version != "5" {
		t.Errorf("%d items, %d users, version %s", items, users, version)
	}
}

func TestLoadNamesFileAndLine(t *testing.T) {
	for in, want := range map[string]string{
		"{\"id\":\"a\"}\n\n{\"idd\":\"b\"}":             ":3: idd: unknown field",
		"{\"id\":\"a\"}\n{\"id\":\"a\"}":                `:2: id: "a" comes twice, first in line 1`,
		"{\"text\":\"a\"}":                              ":1: id: is missing",
		"{\"id\":\"a\"":                                 ":1: not JSON",
		"{\"id\":\"a\"}{\"id\":\"b\"}":                  ":1: data after the end",
		"[]":                                            ":1: want an object",
		"{\"id\":\"a\"}\n\xff":                          ":2: not JSON",
		"{\"id\":\"" + strings.Repeat("x", 600):         ":1: id: not JSON",
		"{\"id\":\"" + strings.Repeat("x", 600) + "\"}": ":1: id: 600 bytes",
		"\n" + strings.Repeat(" ", maxLine+1):           ":2: longer than",
	} {
		path := write(t, "items.ndjson", in)
		for name, load := range map[string]func(string) (int, error){
			"items": New(Options{}).LoadItems, "users": New(Options{}).LoadUsers} {
			if _, err := load(path); err == nil || !strings.Contains(err.Error(), path+want) {
				t.Errorf("%s of %.40q: error %.200v, want %q", name, in, err, want)
			}
		}
	}
	if _, err := New(Options{}).LoadItems(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// CheckItems and CheckUsers find what LoadItems and LoadUsers find, and read no further than they are told.
func TestCheckOfFiles(t *testing.T) {
	good := write(t, "items", "{\"id\":\"a\"}\n\n{\"id\":\"b\"}\n{\"id\":\"c\"}\n\n")
	bad := write(t, "items", "{\"id\":\"a\"}\n{\"id\":\"b\"}\n{\"id\":\"a\"}\n")
	for _, c := range []struct {
		file    string
		most, n int
		all     bool
		err     string
	}{{good, 9, 3, true, ""}, {good, 3, 3, true, ""}, {good, 2, 2, false, ""}, {bad, 2, 2, false, ""},
		{bad, 9, 2, false, `items:3: id: "a" comes twice, first in line 1`}} {
		for name, check := range map[string]func(string, int) (int, bool, error){"items": CheckItems, "users": CheckUsers} {
			n, all, err := check(c.file, c.most)
			if n != c.n || all != c.all || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s of %s, at most %d: %d, %v, %v; want %+v", name, c.file, c.most, n, all, err, c)
			}
		}
	}
	if _, _, err := CheckItems("/nowhere", 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestPutAndDelete(t *testing.T) {
	c := New(Options{MaxItems: 1, MaxUsers: 1})
	for _, want := range []bool{true, false} {
		if created, err := c.PutItem(&grebev1.Item{Id: "a"}); created != want || err != nil {
			t.Errorf("created %v, %v; want %v", created, err, want)
		}
		if created, err := c.PutUser(&grebev1.User{Id: "a"}); created != want || err != nil {
			t.Errorf("created %v, %v; want %v", created, err, want)
		}
	}
	if _, err := c.PutItem(&grebev1.Item{Id: "b"}); !errors.Is(err, ErrFull) {
		t.Errorf("a second item: %v", err)
	}
	if _, err := c.PutUser(&grebev1.User{Id: "b"}); !errors.Is(err, ErrFull) {
		t.Errorf("a second user: %v", err)
	}
	if !deleted(c.DeleteItem("a")) || deleted(c.DeleteItem("a")) || !deleted(c.DeleteUser("a")) ||
		deleted(c.DeleteUser("a")) {
		t.Error("a deletion reports the wrong thing")
	}
	if _, ok := c.Item("a"); ok {
		t.Error("a deleted item is still there")
	}
	if _, ok := c.User("a"); ok {
		t.Error("a deleted user is still there")
	}
}

// FirstValues has of each item what Item has, whatever else the item has.
func TestFirstValues(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	c := New(Options{})
	if c.FirstValues("none", 0, nil) {
		t.Error("an item that there is not")
	}
	for n := range 500 {
		m := &grebev1.Item{Id: fmt.Sprint("i", n), Attributes: map[string]*grebev1.Values{}}
		if text := strings.Repeat("x", r.IntN(200)); r.IntN(2) == 0 {
			m.Text = &text
		}
		if r.IntN(2) == 0 {
			m.Tokens = make([]int32, r.IntN(5))
			for i := range m.Tokens {
				m.Tokens[i] = int32(r.Uint32() >> 1)
			}
		}
		if id := r.Int32(); r.IntN(2) == 0 {
			m.Identifier = &id
		}
		if r.IntN(2) == 0 {
			m.Codes = []int32{r.Int32N(1000), r.Int32N(10)}
		}
		want := map[string]string{}
		for a := range r.IntN(6) {
			name, values := fmt.Sprint("name", a), &grebev1.Values{}
			for v := range r.IntN(4) {
				values.Values = append(values.Values, strings.Repeat("v", r.IntN(200))+fmt.Sprint(v))
			}
			if m.Attributes[name] = values; len(values.Values) > 0 {
				want[name] = values.Values[0]
			}
		}
		if _, err := c.PutItem(m); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		_, version, _ := c.Lookup(m.Id)
		if c.FirstValues(m.Id, version, nil) {
			t.Errorf("version %d is above itself", version)
		}
		if !c.FirstValues(m.Id, version-1, func(name, first string) { got[name] = strings.Clone(first) }) ||
			!maps.Equal(got, want) {
			t.Fatalf("%v has first values %v, want %v", m, got, want)
		}
	}
}

func TestMessageIsTheInverseOfItem(t *testing.T) {
	for _, in := range []string{
		`{"id":"a"}`,
		`{"id":"a","text":"t","tokens":[1],"identifier":0,"codes":[2],"attributes":{"x":["y","z"]}}`,
	} {
		m, err := wire.DecodeItem([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		if back := Message(Item(m)); !proto.Equal(back, m) {
			t.Errorf("%v became %v", m, back)
		}
	}
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	c := New(Options{})
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			for i := range 300 {
				id := fmt.Sprint(i % 7)
				if _, err := c.PutItem(&grebev1.Item{Id: id}); err != nil {
					t.Error(err)
				}
				if _, err := c.PutUser(&grebev1.User{Id: id, History: []string{"1", "2", id}}); err != nil {
					t.Error(err)
				}
				if u, ok := c.User(id); ok {
					c.Resolve(u)
				}
				if k == 0 {
					c.DeleteItem(id)
					c.DeleteUser(id)
				}
				c.Counts()
			}
		})
	}
	wg.Wait()
}

func deleted(ok bool, err error) bool { return ok && err == nil }
