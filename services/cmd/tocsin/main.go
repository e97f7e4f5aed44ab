// Command tocsin is the command line, and with `tocsin up` all of Tocsin in
// one process.
package main

import (
	"github.com/tocsin/tocsin/services/internal/lifecycle"
)

type cli struct {
	Up       upCmd       `cmd:"" help:"Run everything in one process, with an embedded broker and a mail inbox."`
	Emit     emitCmd     `cmd:"" help:"Send recorded events to an archiver."`
	Replay   replayCmd   `cmd:"" help:"Say what people would be told about recorded events."`
	Settings settingsCmd `cmd:"" help:"Apply, get or export the settings of accounts."`
	Topics   topicsCmd   `cmd:"" help:"Create or check the topics in Kafka."`
}

func main() {
	lifecycle.Main("tocsin", "Turns camera events into the right mail to the right person.", &cli{})
}
