// Command gateway decides who is told of what, and has the mails sent.
package main

import (
	"context"

	"github.com/tocsin/tocsin/services/gateway"
	"github.com/tocsin/tocsin/services/internal/admin"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
)

type settings struct {
	lifecycle.Settings
	Admin   admin.Config   `embed:"" prefix:"admin." set:"admin_listen=127.0.0.1:7113"`
	Gateway gateway.Config `embed:""`
}

// Run is called by lifecycle.Main.
func (s *settings) Run(ctx context.Context) error {
	return lifecycle.Run(ctx, s.Settings, func(g *lifecycle.Group) error {
		return g.Serve("gateway", s.Admin, func(env lifecycle.Env) (lifecycle.Service, error) {
			return gateway.New(s.Gateway, env)
		})
	})
}

func main() {
	lifecycle.Main("gateway", "Decides who is told of what, and has the mails sent.", &settings{})
}
