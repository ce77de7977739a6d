package generate

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"grebe/catalog/history"
)

// Auto is the version of a model that follows the catalog.
const Auto = "auto"

var (
	// ErrNoVersion means that a version of the catalog is not kept, or never existed.
	ErrNoVersion = errors.New("no such version of the catalog is kept")
	// ErrDigest means that a version has other items than the caller expects.
	ErrDigest = errors.New("the version has another digest")
	// ErrOldest means that there is no earlier version to return to.
	ErrOldest = errors.New("no earlier version of the catalog is kept")
)

// VersionInfo describes a version of the catalog that can be activated.
type VersionInfo struct {
	Version string
	Digest  string // of its items
	Items   int    // items with codes
	Created time.Time
	Models  []string // models that generate it now
}

// Versions lists the kept versions, newest first.
func (k *Keeper) Versions() []VersionInfo {
	var out []VersionInfo
	for _, v := range slices.Backward(k.history.Versions()) {
		info := VersionInfo{Version: strconv.FormatUint(v.Number, 10), Digest: v.Digest.String(), Items: v.Items,
			Created: v.Created}
		for _, t := range k.following() {
			if t.Generator.Snapshot().Version == info.Version && !slices.Contains(info.Models, t.Name) {
				info.Models = append(info.Models, t.Name)
			}
		}
		out = append(out, info)
	}
	return out
}

// Damaged returns the number of files that were found damaged.
func (k *Keeper) Damaged() int { return k.history.Damaged() }

// Pinned reports whether an activated version keeps the model from following the catalog.
func (k *Keeper) Pinned(model string) bool {
	_, ok := k.pin(model)
	return ok
}

func (k *Keeper) pin(model string) (p Pin, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, ok = k.pins[model]
	return p, ok
}

func (k *Keeper) unpin(model string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pins, model)
}

// inUse reports whether a version must be kept.
func (k *Keeper) inUse(number uint64) bool {
	for _, t := range k.following() {
		if p, ok := k.pin(t.Name); ok && p.Version == number {
			return true
		}
		if s := t.Generator.Snapshot(); s != nil && s.at != nil && s.at.Number == number {
			return true
		}
	}
	return false
}

// Activate makes a model, or all models if the name is empty, generate the items of a version. With Auto they follow
// the catalog. A digest, if given, must be the version's. Either all models switch or none.
func (k *Keeper) Activate(model, version, digest string) error {
	k.build.Lock()
	defer k.build.Unlock()
	if version == Auto {
		return k.activate(nil, k.chosen(model))
	}
	number, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return ErrNoVersion
	}
	v, ok := k.history.Find(number)
	if !ok {
		return ErrNoVersion
	}
	if digest != "" && digest != v.Digest.String() {
		return fmt.Errorf("%w: %v", ErrDigest, v.Digest)
	}
	next, at := map[*target]Pin{}, k.catalog.Stats().Version
	for _, t := range k.chosen(model) {
		next[t] = Pin{Version: number, At: at}
	}
	return k.activate(next, nil)
}

// Follow makes each model generate the version of its pin, and those without a pin follow the catalog. Either all
// models switch or, if it returns an error, none. The error is ErrNoVersion if a version is not kept, or not made yet.
func (k *Keeper) Follow(pins map[string]Pin) error {
	k.build.Lock()
	defer k.build.Unlock()
	now, version := k.Pins(), k.catalog.Stats().Version
	next, free := map[*target]Pin{}, []*target{}
	for _, t := range k.following() {
		p, ok := pins[t.Name]
		old, had := now[t.Name]
		switch {
		case ok && p.At > version:
			return fmt.Errorf("%w: this node's catalog is at version %d, the activation at %d", ErrNoVersion, version, p.At)
		case ok && p != old:
			next[t] = p
		case !ok && had:
			free = append(free, t)
		}
	}
	if len(next) == 0 && len(free) == 0 {
		return nil
	}
	return k.activate(next, free)
}

// InUse returns the versions that models generate now.
func (k *Keeper) InUse() map[string]uint64 {
	out := map[string]uint64{}
	for _, t := range k.following() {
		if s := t.Generator.Snapshot(); s != nil && s.at != nil {
			out[t.Name] = s.at.Number
		}
	}
	return out
}

// Rollback makes a model, or all models if the name is empty, generate the last kept version before the one in use.
func (k *Keeper) Rollback(model string) error {
	k.build.Lock()
	defer k.build.Unlock()
	for {
		next, err := k.before(model)
		if err == nil {
			err = k.activate(next, nil)
		}
		if !errors.Is(err, ErrNoVersion) { // the version was damaged and is no longer kept: try the one before
			return err
		}
	}
}

// before returns the version before the one in use, for each model.
func (k *Keeper) before(model string) (map[*target]Pin, error) {
	next, at := map[*target]Pin{}, k.catalog.Stats().Version
	for _, t := range k.chosen(model) {
		now := t.Generator.Snapshot().at.Number
		for _, v := range k.history.Versions() {
			if v.Number < now {
				next[t] = Pin{Version: v.Number, At: at}
			}
		}
		if _, ok := next[t]; !ok {
			return nil, ErrOldest
		}
	}
	return next, nil
}

func (k *Keeper) chosen(model string) []*target {
	return slices.DeleteFunc(slices.Clone(k.following()), func(t *target) bool { return model != "" && t.Name != model })
}

// activate pins models to versions, and has the free ones follow the catalog. It makes the snapshots of all versions
// before it switches a model.
func (k *Keeper) activate(next map[*target]Pin, free []*target) error {
	made, pins := map[*target]*View{}, k.Pins()
	for t, p := range next {
		s, err := k.earlier(t, p.Version)
		if err != nil {
			return err
		}
		v, err := k.viewOf(t, s, p.At)
		if err != nil {
			return err
		}
		s.warm(t.Generator.Snapshot())
		made[t], pins[t.Name] = v, p
	}
	for _, t := range free {
		delete(pins, t.Name)
	}
	if err := k.writePins(pins); err != nil {
		return err
	}
	defer k.review()
	for t, v := range made {
		t.Generator.stay(v)
		k.log.Info("a version of the catalog was activated", "model", t.Name, "version", v.snap.Version,
			"items", v.snap.Len())
	}
	for _, t := range free {
		t.head.warm(t.Generator.Snapshot())
		t.Generator.Use(t.head)
	}
	return nil
}

// earlier makes a model's snapshot of a kept version. It drops a damaged version.
func (k *Keeper) earlier(t *target, number uint64) (*Snapshot, error) {
	for _, s := range []*Snapshot{t.head, t.Generator.Snapshot()} {
		if s != nil && s.at.Number == number {
			return s, nil
		}
	}
	v, ok := k.history.Find(number)
	if !ok {
		return nil, ErrNoVersion
	}
	err := k.history.Load(v)
	if errors.Is(err, history.ErrDamaged) {
		k.history.Forget(v)
		return nil, fmt.Errorf("%w: %w", ErrNoVersion, err)
	}
	if err != nil {
		return nil, err
	}
	defer k.history.Unload(v)
	near := t.Generator.Snapshot()
	if near != nil && !near.at.Before(v) {
		near = nil
	}
	return k.snapshot(t, v, near)
}

// indexName returns a model's name for file names.
func indexName(model string) string {
	sum := sha256.Sum256([]byte(model))
	return hex.EncodeToString(sum[:8])
}
