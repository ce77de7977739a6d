package serve

import (
	"context"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
)

// users are the users and their events, and all changes of the catalog: *catalog.Catalog, or *catalog.Users beside one.
type users interface {
	UserWithin(ctx context.Context, id string) (*grebev1.User, bool, error)
	ApplyWithin(ctx context.Context, from string, ops []catalog.Op) []catalog.Result
	AppendEventsWithin(ctx context.Context, id string, events []*grebev1.Event) (u catalog.User, created bool, dropped int,
		err error)
}

func people(cfg *Config) users {
	if cfg.Users != nil {
		return cfg.Users
	}
	return cfg.Catalog
}

// known returns a stored user. It waits for the store until the request's deadline.
func (s *Service) known(c *call, id string) (u *grebev1.User, ok bool, err error) {
	if s.cfg.Users == nil {
		u, ok = s.catalog.User(id)
		return u, ok, nil
	}
	ctx, cancel := context.WithDeadline(s.life, c.start.Add(c.deadline))
	defer cancel()
	if u, ok, err = s.people.UserWithin(ctx, id); err != nil {
		err = Errorf(Unavailable, "user.id", "the user cannot be read: %v. A request that has the user's history or text "+
			"needs no store", err)
	}
	return u, ok, err
}
