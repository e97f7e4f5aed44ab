// Command archiver turns what devices and their systems say into ETags.
package main

import (
	"context"

	"github.com/tocsin/tocsin/services/archiver"
	"github.com/tocsin/tocsin/services/internal/admin"
	"github.com/tocsin/tocsin/services/internal/lifecycle"
)

type settings struct {
	lifecycle.Settings
	Admin      admin.Config    `embed:"" prefix:"admin." set:"admin_listen=127.0.0.1:7111"`
	DataCenter string          `name:"datacenter" env:"EEN_AGENT_DATACENTER" help:"Name of this data centre, stamped on every event, such as c001."`
	Archiver   archiver.Config `embed:""`
}

// Run is called by lifecycle.Main.
func (s *settings) Run(ctx context.Context) error {
	s.Archiver.DataCenter = s.DataCenter
	return lifecycle.Run(ctx, s.Settings, func(g *lifecycle.Group) error {
		return g.Serve("archiver", s.Admin, func(env lifecycle.Env) (lifecycle.Service, error) {
			return archiver.New(s.Archiver, env)
		})
	})
}

func main() {
	lifecycle.Main("archiver", "Turns what devices and their systems say into ETags.", &settings{})
}
