package catalog

import (
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// A user that grows counts the bytes of its new events, and of their places in its history.
func TestGrownUsersCountTheirBytes(t *testing.T) {
	for name, base := range map[string]*grebev1.User{
		"history and events": {Id: "u", History: []string{"a", "b"}, Events: []*grebev1.Event{{Item: "b", Time: 5}}},
		"events alone":       {Id: "u", Events: []*grebev1.Event{{Item: "b", Time: 5}}},
		"nothing":            {Id: "u"},
	} {
		e, err := newUser(userRecord(base))
		if err != nil {
			t.Fatal(err)
		}
		for i, at := range []int64{9, 10, 7, 1, 11} { // some come late
			events, size, err := newEvents(eventsRecord([]*grebev1.Event{{Item: "item", Time: at}, {Item: "other", Time: at}}))
			if err != nil {
				t.Fatal(err)
			}
			want := e.size + size
			if len(e.user.History) > 0 {
				want += 2 * 16 // the history names the items of the events once more, by their own texts
			}
			if e, _ = grown(e, "u", events, size, 1000); e.size != want {
				t.Errorf("%s, step %d: counted as %d bytes, want %d", name, i, e.size, want)
			}
		}
	}
}
