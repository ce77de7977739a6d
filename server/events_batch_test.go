package server

import (
	"reflect"
	"strings"
	"testing"
)

// Events of many users come in one batch. Repeated ids and bad lines keep no other event from being added.
func TestEventsBatch(t *testing.T) {
	w := newWorld(t)
	body := strings.Join([]string{
		`{"user":"e1","item":"i1","time":5,"id":"a"}`, `{"user":"e2","item":"i2","time":7,"action":2,"features":{"f":0.5}}`,
		`{"user":"e1","item":"i2","time":4,"id":"b"}`, ``, `{"user":"e1","item":"i1","time":5,"id":"a"}`, `{"user":"e1"}`,
		`{"item":"i1"}`,
		`{"user":"e1","item":"i1","when":1}`, `{"user":"e1","item":"nowhere","time":9,"id":"c"}`}, "\n")
	got := w.batch(t, "/v1/events:batch", body)
	fields := []string{}
	for _, e := range got.Errors {
		fields = append(fields, e.Field)
	}
	if want := []string{"item", "user", "when"}; !reflect.DeepEqual(fields, want) || got.Lines != 8 || got.Created != 4 ||
		got.Unchanged != 1 {
		t.Errorf("errors of %q, want %q; %+v", fields, want, got)
	}
	if len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0],
		`1 event has an item that the catalog does not have, such as "nowhere"`) {
		t.Errorf("warnings %q", got.Warnings)
	}
	if rec := w.ask("POST", "/v1/events:check", body); !strings.Contains(rec.Body.String(),
		`"warnings":["1 event has an item that the catalog does not have, such as \"nowhere\"`) {
		t.Errorf("the check does not warn: %s", rec.Body)
	}
	for id, want := range map[string]string{
		"e1": `{"id":"e1","events":[{"id":"b","item":"i2","time":4,"action":0,"features":{}},{"id":"a","item":"i1",` +
			`"time":5,"action":0,"features":{}},` +
			`{"id":"c","item":"nowhere","time":9,"action":0,"features":{}}]}`,
		"e2": `{"id":"e2","events":[{"item":"i2","time":7,"action":2,"features":{"f":0.5}}]}`,
	} {
		if rec := w.ask("GET", "/v1/users/"+id, ""); strings.TrimSpace(rec.Body.String()) != want {
			t.Errorf("user %s is %s, want %s", id, rec.Body, want)
		}
	}
	if again := w.batch(t, "/v1/events:batch", strings.Split(body, "\n")[0]); again.Created != 0 || again.Unchanged != 1 {
		t.Errorf("sent again: %+v", again)
	}
}
