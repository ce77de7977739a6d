// Package demo writes the data of `grebe demo`: the shop of shop with models trained for it
// (training/README.md), a few of its customers, and the configuration that serves them. The weights are
// part of the binary. For tests there is a toy of random weights instead.
//
// All is what a real folder has, and it is loaded the same way. The same version writes the same bytes.
package demo

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
	"grebe/shop"
)

// version names the folder; a change to what Ensure writes needs a new one.
const version = "demo-7"

// ConfigFile is the configuration in the folder.
const ConfigFile = "grebe.yaml"

// trained has the checkpoints, the configuration, and the items' codes.
//
//go:embed trained
var trained embed.FS

// The shop that the models know, and what training gave its items.
const (
	seed            = 1
	firstIdentifier = 2630
	levels          = 3
)

// customers are test customers, whom no model was trained on, by the names that the demo gives them.
var customers = []struct {
	name   string
	number int
}{{"kaya", 12}, {"rosa", 9}, {"grace", 1}, {"jonas", 6}, {"hugo", 5}, {"dario", 3}}

// Model is the language model, HSTU the other one, and User whose ranking the demo shows.
const (
	Model = "shop"
	HSTU  = "shop-hstu"
	User  = "kaya"
)

// Dir returns the folder that Ensure uses when it is given none.
func Dir() string {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir() // no home: a service account, a bare container
	}
	return filepath.Join(base, "grebe", version)
}

// Ensure writes the shop and its models to dir unless they are there already.
func Ensure(dir string) error { return place(dir, writeShop) }

// place writes a folder unless it is there already. It is complete or absent: it is written beside dir
// and moved.
func place(dir string, write func(dir string) error) error {
	if complete(dir) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("demo: %w (give a folder that can be written with --data)", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "demo-*")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := write(tmp); err != nil {
		return fmt.Errorf("demo: write %s: %w", dir, err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	err = os.Remove(dir)
	if complete(dir) {
		return nil // another process was faster and wrote the same
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("demo: %s has other files in it: give an empty folder or a new one", dir)
	}
	if err := os.Rename(tmp, dir); err != nil {
		if complete(dir) {
			return nil // likewise
		}
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

// complete reports whether place has written dir.
func complete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, ConfigFile))
	return err == nil
}

func writeShop(dir string) error {
	w, err := shop.New(seed, shop.Default)
	if err != nil {
		return err
	}
	items, err := catalogLines(w)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"items.ndjson": items, "users.ndjson": userLines(w)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	files, err := fs.Sub(trained, "trained")
	if err != nil {
		return err
	}
	return fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == codesFile {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dir, name), 0o755)
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), data, 0o644)
	})
}

// codesFile has the codes of the items, a byte each.
const codesFile = "codes.bin"

// catalogLines returns the shop's items with identifiers and codes.
func catalogLines(w *shop.World) ([]byte, error) {
	codes, err := trained.ReadFile("trained/" + codesFile)
	if err != nil {
		return nil, err
	}
	if len(codes) != levels*len(w.Items) {
		return nil, fmt.Errorf("%s has %d codes for %d items: it was made for another shop", codesFile, len(codes),
			len(w.Items))
	}
	var out bytes.Buffer
	for i := range w.Items {
		m := w.ItemMessage(i)
		identifier := int32(firstIdentifier + i)
		m.Identifier = &identifier
		for _, c := range codes[levels*i : levels*(i+1)] {
			m.Codes = append(m.Codes, int32(c))
		}
		out.Write(wire.EncodeItem(m))
	}
	return out.Bytes(), nil
}

func userLines(w *shop.World) []byte {
	var out bytes.Buffer
	for _, c := range customers {
		m := w.UserMessage(w.User(shop.Test, c.number))
		m.Id = c.name
		out.Write(wire.EncodeUser(m))
	}
	return out.Bytes()
}

// Offer is a customer, and a list of items that the shop shows them.
type Offer struct {
	User  *grebev1.User
	Items []*grebev1.Item // as the catalog has them
}

// OfferTo returns the offer to one of the demo's customers.
func OfferTo(name string) (*Offer, error) {
	w, err := shop.New(seed, shop.Default)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	for _, c := range customers {
		if c.name != name {
			continue
		}
		u := w.User(shop.Test, c.number)
		o := &Offer{User: w.UserMessage(u)}
		o.User.Id = name
		for _, i := range u.Offer {
			o.Items = append(o.Items, w.ItemMessage(i))
		}
		return o, nil
	}
	return nil, fmt.Errorf("demo: no customer %q", name)
}

// Profile returns the first line of the customer's text.
func (o *Offer) Profile() string {
	line, _, _ := strings.Cut(o.User.GetText(), "\n")
	return line
}

// Tail returns the last lines of the customer's text.
func (o *Offer) Tail(n int) []string {
	lines := strings.Split(strings.TrimSpace(o.User.GetText()), "\n")
	return lines[max(0, len(lines)-n):]
}

// Texts returns what the shop's items are, by id.
func Texts() (map[string]string, error) {
	w, err := shop.New(seed, shop.Default)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	texts := make(map[string]string, len(w.Items))
	for i := range w.Items {
		texts[w.Items[i].ID] = w.Items[i].Text()
	}
	return texts, nil
}
