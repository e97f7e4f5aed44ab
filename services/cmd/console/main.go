// Command console shows what is watched and told, and keeps the settings.
package main

import (
	"context"

	"github.com/tocsin/tocsin/services/console"
	"github.com/tocsin/tocsin/services/internal/admin"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
)

type settings struct {
	lifecycle.Settings
	Admin   admin.Config   `embed:"" prefix:"admin." set:"admin_listen=127.0.0.1:7110"`
	Console console.Config `embed:""`
}

// Run is called by lifecycle.Main.
func (s *settings) Run(ctx context.Context) error {
	return lifecycle.Run(ctx, s.Settings, func(g *lifecycle.Group) error {
		return g.Serve("console", s.Admin, func(env lifecycle.Env) (lifecycle.Service, error) {
			return console.New(s.Console, env)
		})
	})
}

func main() {
	lifecycle.Main("console", "Shows what is watched and told, and keeps the settings.", &settings{})
}
