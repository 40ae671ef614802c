package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/tools/internal/message"
	"github.com/myriad-go/myriad/tools/load"
)

type loadFlags struct {
	cfg          load.Config
	settingTexts map[string][]string // values of settings, by name
	configFile   string              // JSON file with a configuration, "" for none
	unescape     bool
	results      outputFlags
	agents       distributedLoadFlags
}

// flagAliases maps alternative flag names, mostly those of tcpkali, to the names of this program.
var flagAliases = map[string]string{
	"ssl":              "tls",
	"websocket":        "ws",
	"source-ip":        "src",
	"channel-lifetime": "lifetime",
	"workers":          "loops",
}

const tcpkaliText = `  Aliases: --ssl for --tls, --websocket for --ws, --source-ip for --src, --workers for
  --loops and --channel-lifetime for --lifetime. The times to connect and to the first
  byte are always measured. docs/load.md lists the differences from tcpkali.
`

func resolveFlagAlias(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if here, ok := flagAliases[name]; ok {
		name = here
	}
	return pflag.NormalizedName(name)
}

// rawTextFlag is the flag for a load.Setting. It stores its values in textsByName. If a flag is repeated, the last
// value replaces the earlier values. However, a flag of the help group "Messages", or of a Setting whose List is true,
// keeps all values.
type rawTextFlag struct {
	load.Setting
	textsByName map[string][]string
}

func (f rawTextFlag) Set(text string) error {
	if !f.List && f.Group != "Messages" { // all messages are kept
		f.textsByName[f.Name] = nil
	}
	f.textsByName[f.Name] = append(f.textsByName[f.Name], text)
	return nil
}

func (f rawTextFlag) String() string { return "" }

func (f rawTextFlag) Type() string {
	if f.Bare == "true" {
		return "bool"
	}
	return "value"
}

func (f *loadFlags) addFlagGroupsWithAliasesAndHelp(cmd *cobra.Command, groupNames ...string) {
	f.settingTexts = make(map[string][]string)
	var all flagGroups
	settings := load.Settings()
	cmd.Flags().SetNormalizeFunc(resolveFlagAlias)
	for _, name := range groupNames {
		text := ""
		if name == "tcpkali" {
			text = tcpkaliText
		}
		all.addFlagGroup(name, text, func(flags *pflag.FlagSet) {
			for _, s := range settings {
				if s.Group == name {
					f.addSettingFlag(flags, s)
				}
			}
			f.addNonSettingFlagsOfGroup(flags, name, settings)
		})
	}
	all.addFlagsAndGroupedHelp(cmd)
}

func (f *loadFlags) addSettingFlag(flags *pflag.FlagSet, s load.Setting) {
	if f.cfg.Hold && s.Name == "connections" {
		s.Short = "n"
	}
	flags.VarP(rawTextFlag{s, f.settingTexts}, s.Name, s.Short, s.Help)
	flags.Lookup(s.Name).NoOptDefVal = s.Bare
}

// addNonSettingFlagsOfGroup adds those flags of a help group that are not among the load.Settings of this group.
func (f *loadFlags) addNonSettingFlagsOfGroup(flags *pflag.FlagSet, group string, settings []load.Setting) {
	switch group {
	case "Connections":
		flags.StringVar(&f.configFile, "config", "", "read the configuration from this `FILE`, a JSON object with flag names as keys; - is standard input; flags override it")
		if !f.cfg.Hold {
			return
		}
		for _, s := range settings {
			switch s.Name {
			case "duration":
				s.Help = "hold connections for this `TIME` (default: until Ctrl-C, at most 30 days)"
				f.addSettingFlag(flags, s)
			case "hold-after":
				s.Help = "hold them for this `TIME` after the final --check (default 0s)"
				f.addSettingFlag(flags, s)
			}
		}
	case "Messages":
		flags.BoolVarP(&f.unescape, "unescape-message-args", "e", false, "interpret escapes such as \\n, \\r, \\t, \\\\ and \\xHH in messages and answers")
	case "Agents":
		f.agents.addFlags(flags)
	case "Results":
		f.results.addFlags(flags)
		if f.cfg.Hold {
			flags.Lookup("expect").Usage = "fail unless this `EXPECTATION`, such as connect.p99<5ms, errors==0 or, with --check, check.p99<5ms, is met (repeatable)"
		}
	case "tcpkali":
		addParsedFlag(flags, &f.results.percents, parsePercentiles, "latency-percentiles", "", "also print these latency percentiles, a `LIST` such as 95,99,99.5")
		for _, name := range []string{"latency-connect", "latency-first-byte"} {
			flags.Bool(name, false, "")
			flags.Lookup(name).Hidden = true
		}
	}
}

// buildConfigFromFlags builds and validates f.cfg from the file of --config, the flags and the targets.
func (f *loadFlags) buildConfigFromFlags(stdin io.Reader, targets []string) error {
	hold := f.cfg.Hold
	if err := f.readConfigIfRequested(stdin); err != nil {
		return err
	}
	f.cfg.Hold = f.cfg.Hold || hold
	for name := range f.settingTexts {
		if err := f.unescapeMessageSettingIfRequested(name); err != nil {
			return err
		}
	}
	webSocket := f.cfg.WebSocket != nil || f.settingTexts["ws"] != nil
	if err := f.cfg.Set(f.settingTexts); err != nil {
		of, _ := errors.AsType[*load.SettingError](err)
		return usagef("--%s is %w", of.Name, of.Err)
	}
	switch configured := f.cfg.Target != ""; {
	case configured && len(targets) > 0:
		return usagef("a target is given as an argument and in --config; expected one of the two")
	case !configured:
		if err := f.cfg.SetTargets(targets...); err != nil {
			return usageError{err}
		}
	}
	url := func(target string) bool {
		return strings.HasPrefix(target, "ws://") || strings.HasPrefix(target, "wss://")
	}
	if f.settingTexts["header"] != nil && !webSocket && !slices.ContainsFunc(targets, url) {
		return usagef("--header is given without a WebSocket; expected --ws or a target such as ws://HOST/")
	}
	if err := f.cfg.Validate(); err != nil {
		return usageError{err}
	}
	return nil
}

func (f *loadFlags) readConfigIfRequested(stdin io.Reader) error {
	if f.configFile == "" {
		return nil
	}
	const maxBytes = 4 * load.MaxMessage
	in := stdin
	if f.configFile != "-" {
		file, err := os.Open(f.configFile)
		if err != nil {
			return usagef("--config: %w", err)
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxBytes+1))
	switch {
	case err != nil:
		return usagef("--config: %w", err)
	case len(text) > maxBytes:
		return usagef("--config is %s, which is too large; expected at most %d bytes", f.configFile, maxBytes)
	}
	if err := f.cfg.UnmarshalJSON(bytes.TrimSpace(text)); err != nil {
		return usagef("--config: %s: %s", f.configFile, strings.TrimPrefix(err.Error(), "load: config: "))
	}
	return nil
}

// unescapeMessageSettingIfRequested replaces escape sequences in a setting's values if --unescape-message-args is given
// and the setting is a message or an answer.
func (f *loadFlags) unescapeMessageSettingIfRequested(name string) error {
	if !f.unescape || !slices.Contains([]string{"message", "first-message", "answer", "latency-marker"}, name) {
		return nil
	}
	for i, text := range f.settingTexts[name] {
		plain, err := message.UnescapeKeepingExpressions(text)
		if err != nil {
			return usagef("--%s: %w", name, err)
		}
		if name == "answer" || name == "latency-marker" {
			t, err := message.Parse(string(plain))
			if err != nil {
				return usagef("--%s: %w", name, err)
			}
			fixed, ok := t.MessageIfConstant()
			if !ok {
				return usagef(`--%s is %q, which contains an expression; expected none, or \\{ for a literal \{`, name, text)
			}
			plain = fixed
		}
		f.settingTexts[name][i] = string(plain)
	}
	return nil
}
