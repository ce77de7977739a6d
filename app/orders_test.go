package app

import (
	"path/filepath"
	"slices"
	"testing"

	"grebe/internal/config"
	"grebe/plan"
	"grebe/schedule"
	"grebe/shop/demo"
)

// The demo states which orders of the prompt auto may choose: with a question per item the user comes first.
func TestDemoStatesItsOrders(t *testing.T) {
	dir := t.TempDir()
	if err := demo.Ensure(dir); err != nil {
		t.Fatal(err)
	}
	l, err := config.Load(config.Source{File: filepath.Join(dir, demo.ConfigFile)})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]schedule.Orders{
		"shop": schedule.Of(plan.UserFirst, plan.ItemFirst), "shop-pointwise": schedule.Of(plan.UserFirst),
	} {
		i := slices.IndexFunc(l.Models, func(m config.Model) bool { return m.Name == name })
		if policy, orders, err := prefixOf(&l.Config, &l.Models[i]); err != nil || policy != schedule.Predicted ||
			orders != want {
			t.Errorf("%s: %v of %b (%v), want predicted of %b", name, policy, orders, err, want)
		}
	}
}
