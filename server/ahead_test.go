package server

import (
	"net/http"
	"testing"
)

// Models without a cache have nothing to compute ahead, and the answer says so.
func TestIndexWithoutACache(t *testing.T) {
	w := newWorld(t)
	if rec := w.ask("GET", "/v1/items:index", ""); rec.Code != http.StatusOK || rec.Body.String() != "{\"models\":[]}\n" {
		t.Errorf("status %d, %s; want no models", rec.Code, rec.Body)
	}
	wantError(t, w.ask("POST", "/v1/items:index", ""), http.StatusUnprocessableEntity, "unprocessable", "model")
	wantError(t, w.ask("POST", "/v1/items:index?model=gone", ""), http.StatusNotFound, "not_found", "model")
}

// A model that is misspelt, or given in the body, does not start a pass for all models.
func TestIndexOfAMisplacedModel(t *testing.T) {
	w := newWorld(t)
	for _, at := range []struct{ query, body string }{
		{"?modle=m", ""}, {"?model=%zz", ""}, {"?model=a&model=b", ""}, {"", `{"model": "m"}`}, {"", "{"},
	} {
		wantError(t, w.ask("POST", "/v1/items:index"+at.query, at.body), http.StatusBadRequest, "invalid_argument", "")
	}
}
