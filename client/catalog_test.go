package client_test

import (
	"io"
	"net/http"
	"testing"

	"grebe/client"
)

func TestCatalogCalls(t *testing.T) {
	_, c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		answer := map[string]string{
			"GET /v1/items/a%2Fb ": `{"id": "a/b", "codes": [1, 2]}`,
			"GET /v1/users/u ":     `{"id": "u", "history": ["a"]}`,
			"GET /v1/models ":      `{"object": "list", "data": [{"id": "m", "scoring": "identifier"}]}`,
			"POST /v1/items:batch {\"id\":\"a\",\"text\":\"A\"}\n{\"id\":\"b\"}\n": `{"lines": 2, "created": 1, "failed": 1,
				"errors": [{"line": 2, "code": "invalid_argument", "message": "no", "field": "text"}]}`,
		}[r.Method+" "+r.URL.EscapedPath()+" "+string(body)]
		if answer == "" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = io.WriteString(w, answer)
	})
	if it, err := c.GetItem(t.Context(), "a/b"); err != nil || it.ID != "a/b" || len(it.Codes) != 2 {
		t.Errorf("item %+v, %v", it, err)
	}
	if u, err := c.GetUser(t.Context(), "u"); err != nil || u.ID != "u" || len(u.History) != 1 {
		t.Errorf("user %+v, %v", u, err)
	}
	if m, err := c.Models(t.Context()); err != nil || len(m) != 1 || m[0].ID != "m" || m[0].Scoring != "identifier" {
		t.Errorf("models %+v, %v", m, err)
	}
	b, err := c.PutItems(t.Context(), client.Item{ID: "a", Text: "A"}, client.Item{ID: "b"})
	if err != nil || b.Lines != 2 || b.Created != 1 || len(b.Errors) != 1 || b.Errors[0].Field != "text" {
		t.Errorf("batch %+v, %v", b, err)
	}
}
