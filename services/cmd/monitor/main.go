// Command monitor watches devices and tells the gateway what is worth telling.
package main

import (
	"context"

	"github.com/tocsin/tocsin/services/internal/admin"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
	"github.com/tocsin/tocsin/services/monitor"
)

type settings struct {
	lifecycle.Settings
	Admin   admin.Config   `embed:"" prefix:"admin." set:"admin_listen=127.0.0.1:7112"`
	Monitor monitor.Config `embed:""`
}

// Run is called by lifecycle.Main.
func (s *settings) Run(ctx context.Context) error {
	return lifecycle.Run(ctx, s.Settings, func(g *lifecycle.Group) error {
		return g.Serve("monitor", s.Admin, func(env lifecycle.Env) (lifecycle.Service, error) {
			return monitor.New(s.Monitor, env)
		})
	})
}

func main() {
	lifecycle.Main("monitor", "Watches devices and tells the gateway what is worth telling.", &settings{})
}
