package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

// GetItem returns an item.
func (c *Client) GetItem(ctx context.Context, id string) (*Item, error) {
	out := &Item{}
	return out, c.call(ctx, http.MethodGet, "/v1/items/"+url.PathEscape(id), nil, out, true)
}

// GetUser returns a user.
func (c *Client) GetUser(ctx context.Context, id string) (*User, error) {
	out := &User{}
	return out, c.call(ctx, http.MethodGet, "/v1/users/"+url.PathEscape(id), nil, out, true)
}

// PutItems adds or replaces items as one version of the catalog.
func (c *Client) PutItems(ctx context.Context, items ...Item) (*Batch, error) {
	var lines bytes.Buffer
	to := json.NewEncoder(&lines)
	for i := range items {
		if err := to.Encode(&items[i]); err != nil {
			return nil, fmt.Errorf("grebe: %w", err)
		}
	}
	out := &Batch{}
	return out, c.call(ctx, http.MethodPost, "/v1/items:batch", lines.Bytes(), out, true)
}

// Models returns the models that the server has loaded.
func (c *Client) Models(ctx context.Context) ([]Model, error) {
	var out struct {
		Data []Model `json:"data"`
	}
	err := c.call(ctx, http.MethodGet, "/v1/models", nil, &out, true)
	return out.Data, err
}

// Batch says what became of the lines of a batch.
type Batch struct {
	Lines     int64       `json:"lines"`
	Created   int64       `json:"created"`
	Replaced  int64       `json:"replaced"`
	Deleted   int64       `json:"deleted"`
	Unchanged int64       `json:"unchanged"`
	Failed    int64       `json:"failed"`
	Errors    []LineError `json:"errors"` // the first ones
	Version   string      `json:"version"`
	Warnings  []string    `json:"warnings"`
}

// LineError says what is wrong with a line of a batch.
type LineError struct {
	Line    int64  `json:"line"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field"`
}

// Model is a model that the server has loaded.
type Model struct {
	ID           string `json:"id"`
	Architecture string `json:"architecture"`
	DType        string `json:"dtype"`
	Scoring      string `json:"scoring"` // identifier, pointwise or tasks
}
