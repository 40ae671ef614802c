package agents

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/myriad-go/myriad/internal/lograte"
)

// rateLimited returns a function that passes to say at most one line of the same format each lograte.Interval, with
// the number of those that it has suppressed: for what strangers can cause.
func rateLimited(say func(format string, args ...any)) func(format string, args ...any) {
	log := slog.New(lograte.New(sayHandler(say)))
	return func(format string, args ...any) { log.Info(format, "line", fmt.Sprintf(format, args...)) }
}

// sayHandler is a slog.Handler that says the attribute line of a record.
type sayHandler func(format string, args ...any)

// Handle implements slog.Handler.
func (say sayHandler) Handle(_ context.Context, r slog.Record) error {
	var line, more string
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == lograte.Suppressed {
			more = fmt.Sprintf(" (and %v more times)", a.Value)
		} else {
			line = a.Value.String()
		}
		return true
	})
	say("%s%s", line, more)
	return nil
}

// The others of slog.Handler.
func (sayHandler) Enabled(context.Context, slog.Level) bool { return true }
func (say sayHandler) WithAttrs([]slog.Attr) slog.Handler   { return say }
func (say sayHandler) WithGroup(string) slog.Handler        { return say }
