package catalog

import (
	"fmt"
	"math/rand/v2"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// Preview says of every change what Apply then does.
func TestPreview(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	c := New(Options{})
	for range 2000 {
		id, text := fmt.Sprint(r.IntN(8)), fmt.Sprint(r.IntN(2))
		op := []Op{{PutItem: &grebev1.Item{Id: id, Text: &text}}, {PutUser: &grebev1.User{Id: id, Text: &text}},
			{DeleteItem: id}, {DeleteUser: id},
			{AppendEvents: &grebev1.AppendEventsRequest{Id: id,
				Events: []*grebev1.Event{event(text, "i", 5), event(fmt.Sprint(r.IntN(9)), "i", 5)}}},
			{PutItem: &grebev1.Item{}}}[r.IntN(6)]
		version := c.Stats().Version
		want := c.Preview([]Op{op})[0]
		if c.Stats().Version != version {
			t.Fatalf("%+v was changed", op)
		}
		got := c.Apply([]Op{op})[0]
		if (got.Err == nil) != (want.Err == nil) {
			t.Fatalf("%+v: %v, foretold was %v", op, got.Err, want.Err)
		}
		if got.Err = want.Err; got != want {
			t.Fatalf("%+v: %+v, foretold was %+v", op, got, want)
		}
	}
}
