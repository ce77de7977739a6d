package kube

import (
	"context"
)

// rights are all that a client needs, by resource.
var rights = []struct {
	resource resource
	verbs    []string
}{
	{configMaps, []string{"get", "list", "watch", "create", "update", "delete"}},
	{leases, []string{"list", "create", "patch", "delete"}},
}

// review asks the API server for the caller's own right.
type review struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Spec       reviewSpec   `json:"spec"`
	Status     reviewStatus `json:"status,omitzero"`
}

type reviewSpec struct {
	Attributes reviewAttributes `json:"resourceAttributes"`
}

type reviewAttributes struct {
	Namespace string `json:"namespace"`
	Verb      string `json:"verb"`
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
}

type reviewStatus struct {
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason,omitempty"`
}

// Missing returns the rights that this client needs and its service account does not have.
func (c *Client) Missing(ctx context.Context) ([]*Denied, error) {
	var out []*Denied
	for _, need := range rights {
		for _, verb := range need.verbs {
			ask := review{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"}
			ask.Spec.Attributes = reviewAttributes{c.o.Namespace, verb, need.resource.group, need.resource.name}
			var told review
			if err := c.call(ctx, request{verb: "create", resource: reviews, body: ask}, &told); err != nil {
				return nil, failed(ctx, "review", verb+" "+need.resource.name, err)
			}
			if !told.Status.Allowed {
				out = append(out, &Denied{Verb: verb, Resource: need.resource.name, Group: need.resource.group,
					Namespace: c.o.Namespace, message: told.Status.Reason})
			}
		}
	}
	return out, nil
}
