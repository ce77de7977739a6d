package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	grebev1 "grebe/api/grebe/v1"
	"grebe/client"
)

// Every field of the API's messages has its place here, under the same name.
func TestMessagesAreTheAPIs(t *testing.T) {
	all := grebev1.File_grebe_v1_grebe_proto.Messages()
	for name, v := range map[string]any{
		"Item": client.Item{}, "User": client.User{}, "Event": client.Event{},
		"RankRequest": client.RankRequest{}, "RankResponse": client.RankResponse{}, "Ranked": client.Ranked{},
		"Part": client.Part{}, "Route": client.Route{},
		"RecommendRequest": client.RecommendRequest{}, "RecommendResponse": client.RecommendResponse{},
		"Recommended": client.Recommended{},
		"Usage":       client.Usage{}, "Timing": client.Timing{},
	} {
		have := map[string]bool{}
		for i := range reflect.TypeOf(v).NumField() {
			tag, _, _ := strings.Cut(reflect.TypeOf(v).Field(i).Tag.Get("json"), ",")
			have[tag] = true
		}
		fields := all.ByName(protoreflect.Name(name)).Fields()
		for i := range fields.Len() {
			f := string(fields.Get(i).Name())
			if !have[f] {
				t.Errorf("%s has no %s", name, f)
			}
			delete(have, f)
		}
		for f := range have {
			t.Errorf("%s has %s, which the API does not", name, f)
		}
	}
}

func serve(t *testing.T, h http.HandlerFunc) (*httptest.Server, *client.Client) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, client.Options{Key: "secret", Patience: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return s, c
}

func fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{
		"code": code, "message": "because", "field": "user.id"}})
}

// A server that is full, stopping or breaks connections is asked again; one that says no is not.
func TestAsksAgainWhenNotTaken(t *testing.T) {
	var calls atomic.Int32
	_, c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Error("no key")
		}
		switch calls.Add(1) {
		case 1:
			fail(w, http.StatusServiceUnavailable, "unavailable")
		case 2:
			panic(http.ErrAbortHandler) // the connection breaks
		case 3:
			fail(w, http.StatusTooManyRequests, "resource_exhausted")
		default:
			_,
				_ =
				w.Write(
					[]byte(`{"model": "m", "results": [{"index": 1, "id": "i2", "score": 0.5}], "usage": {"by_source": {"host": 3}}}`))
		}
	})
	got, err := c.Rank(t.Context(), &client.RankRequest{User: client.User{ID: "u"}, Candidates: client.IDs("i1", "i2")})
	if err != nil || calls.Load() != 4 || got.Results[0].ID != "i2" || got.Usage.BySource["host"] != 3 {
		t.Errorf("after %d calls: %+v, %v", calls.Load(), got, err)
	}
}

func TestSaysWhatIsWrong(t *testing.T) {
	var calls atomic.Int32
	_, c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		fail(w, http.StatusBadRequest, "invalid_argument")
	})
	_, err := c.Recommend(t.Context(), &client.RecommendRequest{})
	var e *client.Error
	if !errors.As(err, &e) || e.Status != 400 || e.Code != "invalid_argument" || e.Field != "user.id" ||
		calls.Load() != 1 {
		t.Errorf("after %d calls: %v", calls.Load(), err)
	}
}

// Events that may have arrived are not sent twice.
func TestEventsAreNotSentTwice(t *testing.T) {
	var calls atomic.Int32
	_, c := serve(t, func(http.ResponseWriter, *http.Request) {
		calls.Add(1)
		panic(http.ErrAbortHandler)
	})
	if err := c.AppendEvents(t.Context(), "u/1", client.Event{Item: "i1"}); err == nil || calls.Load() != 1 {
		t.Errorf("%d calls, error %v", calls.Load(), err)
	}
}

// A proxy that gives up does not know whether events arrived; a server that is full does.
func TestEventsAfterAnError(t *testing.T) {
	for code, want := range map[string]int32{"bad_gateway": 1, "resource_exhausted": 2} {
		var calls atomic.Int32
		_, c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if calls.Add(1) == 1 {
				fail(w, map[string]int{"bad_gateway": http.StatusGatewayTimeout,
					"resource_exhausted": http.StatusTooManyRequests}[code], code)
			}
		})
		_ = c.AppendEvents(t.Context(), "u1", client.Event{Item: "i1"})
		if calls.Load() != want {
			t.Errorf("%s: events were sent %d times, want %d", code, calls.Load(), want)
		}
	}
}

// A deletion whose answer was lost is done when it is not there any more.
func TestDeletedBefore(t *testing.T) {
	var calls atomic.Int32
	_, c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		fail(w, http.StatusNotFound, "not_found")
	})
	if err := c.DeleteUser(t.Context(), "u1"); err != nil {
		t.Errorf("the second try finds nothing, and that is an error: %v", err)
	}
	if err := c.DeleteUser(t.Context(), "u1"); err == nil {
		t.Error("a user that was never there was deleted")
	}
}

func TestGivesUp(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusServiceUnavailable, "unavailable")
	})
	for _, patience := range []time.Duration{-1, 50 * time.Millisecond} {
		c, err := client.New(s.URL, client.Options{Patience: patience})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.PutItem(t.Context(), &client.Item{ID: "i"}); err == nil {
			t.Error("no error")
		}
		c.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, err := client.New(s.URL, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.DeleteUser(ctx, "u"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it canceled", err)
	}
	if _, err := client.New("ftp://x", client.Options{}); err == nil {
		t.Error("ftp was taken")
	}
}
