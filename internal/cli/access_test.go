package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// An error of the network says what to do, without the words of Go's packages.
func TestUnanswered(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	for url, want := range map[string]string{
		"https" + strings.TrimPrefix(s.URL, "http"): "http:// instead of https://",
		"http://127.0.0.1:1":                        "is a server running there?",
	} {
		resp, err := http.Get(url)
		if err == nil {
			resp.Body.Close()
			t.Fatalf("%s answers", url)
		}
		if got := Unanswered(err).Error(); !strings.Contains(got, want) || strings.Contains(got, "HTTPS client") {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}
