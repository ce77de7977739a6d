package catalog

import (
	"reflect"
	"testing"
)

// A warning has the count and the items, and can be read again.
func TestWarningOfUnknownItems(t *testing.T) {
	var none UnknownItems
	if text := none.Warning(); text != "" {
		t.Errorf("without events: %q", text)
	}
	for want, events := range map[string][]string{
		`1 event has an item that the catalog does not have, such as "a"; it counts once the catalog has it`: {"a"},
		`3 events have items that the catalog does not have, such as "a, \"b", "c;"; they count once it has them`: {
			`a, "b`, "c;", "c;"},
	} {
		var u UnknownItems
		for _, item := range events {
			u.Add(item, 1)
		}
		if got := u.Warning(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got, ok := ReadWarning(want); !ok || !reflect.DeepEqual(got, u) {
			t.Errorf("%q is read as %+v, want %+v", want, got, u)
		}
	}
	if _, ok := ReadWarning(`model "m" does not have the codes of 3 items`); ok {
		t.Error("another warning is read")
	}
}
