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

// loadFlags are the flags of load, and those of hold, which are some of them.
type loadFlags struct {
	cfg          load.Config
	settingTexts map[string][]string // texts of settings, by name
	configFile   string              // a file with a configuration as JSON, "" for none
	unescape     bool
	results      outputFlags
	agents       distributedLoadFlags
}

// flagAliases are further names of flags, most of them tcpkali's.
var flagAliases = map[string]string{
	"ssl":              "tls",
	"websocket":        "ws",
	"source-ip":        "src",
	"channel-lifetime": "lifetime",
	"workers":          "loops",
}

const tcpkaliText = `  --ssl is --tls, --websocket --ws, --source-ip --src, --workers --loops and
  --channel-lifetime --lifetime. The time to connect and to the first byte is
  always measured. For what differs see docs/load.md.
`

// canonicalFlagName is the name that a flag has here.
func canonicalFlagName(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if here, ok := flagAliases[name]; ok {
		name = here
	}
	return pflag.NormalizedName(name)
}

// settingFlag is the flag of a setting: it keeps the texts for load.Config.Set.
type settingFlag struct {
	load.Setting
	textsByName map[string][]string
}

func (f settingFlag) Set(text string) error {
	if !f.List && f.Group != "Messages" { // of several messages none is left out
		f.textsByName[f.Name] = nil
	}
	f.textsByName[f.Name] = append(f.textsByName[f.Name], text)
	return nil
}

func (f settingFlag) String() string { return "" }

func (f settingFlag) Type() string {
	if f.Bare == "true" {
		return "bool"
	}
	return "value"
}

// addFlagGroups gives a command the flags of these groups of settings, its own behind those of the
// group that they belong to.
func (f *loadFlags) addFlagGroups(cmd *cobra.Command, groups ...string) {
	f.settingTexts = make(map[string][]string)
	var all flagGroups
	settings := load.Settings()
	cmd.Flags().SetNormalizeFunc(canonicalFlagName)
	for _, name := range groups {
		text := ""
		if name == "tcpkali" {
			text = tcpkaliText
		}
		all.addGroup(name, text, func(flags *pflag.FlagSet) {
			for _, s := range settings {
				if s.Group == name {
					f.addSettingFlag(flags, s)
				}
			}
			f.addCommandFlags(flags, name, settings)
		})
	}
	all.attachTo(cmd)
}

func (f *loadFlags) addSettingFlag(flags *pflag.FlagSet, s load.Setting) {
	if f.cfg.Hold && s.Name == "connections" {
		s.Short = "n"
	}
	flags.VarP(settingFlag{s, f.settingTexts}, s.Name, s.Short, s.Help)
	flags.Lookup(s.Name).NoOptDefVal = s.Bare
}

// addCommandFlags adds flags that are no settings of a load.Config, and those of other groups that
// hold has.
func (f *loadFlags) addCommandFlags(flags *pflag.FlagSet, group string, settings []load.Setting) {
	switch group {
	case "Connections":
		flags.StringVar(&f.configFile, "config", "", "read the configuration from this `FILE`, a JSON object with the names of flags as keys; - is standard input; flags go before it")
		if !f.cfg.Hold {
			return
		}
		for _, s := range settings {
			switch s.Name {
			case "duration":
				s.Help = "hold them for this `TIME` (default: until Ctrl-C, at most 30 days)"
				f.addSettingFlag(flags, s)
			case "hold-after":
				s.Help = "hold them for this `TIME` more, behind what --check does at the end (default 0s)"
				f.addSettingFlag(flags, s)
			}
		}
	case "Messages":
		flags.BoolVarP(&f.unescape, "unescape-message-args", "e", false, "read \\n, \\r, \\t, \\\\, \\xHH and such in texts of messages and answers")
	case "Agents":
		f.agents.addFlags(flags)
	case "Results":
		f.results.addFlags(flags)
	case "tcpkali":
		addParsedFlag(flags, &f.results.percents, parsePercentiles, "latency-percentiles", "", "print these percentiles of the latency too, a `LIST` as 95,99,99.5")
		for _, name := range []string{"latency-connect", "latency-first-byte"} {
			flags.Bool(name, false, "")
			flags.Lookup(name).Hidden = true
		}
	}
}

// buildConfig makes the configuration of --config, the flags and the targets, and checks it.
func (f *loadFlags) buildConfig(stdin io.Reader, targets []string) error {
	hold := f.cfg.Hold
	if err := f.readConfigFile(stdin); err != nil {
		return err
	}
	f.cfg.Hold = f.cfg.Hold || hold
	for name := range f.settingTexts {
		if err := f.unescapeSetting(name); err != nil {
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
		return usagef("a target is given, and --config has one; expected one of the two")
	case !configured:
		if err := f.cfg.SetTargets(targets...); err != nil {
			return usageError{err}
		}
	}
	url := func(target string) bool {
		return strings.HasPrefix(target, "ws://") || strings.HasPrefix(target, "wss://")
	}
	if f.settingTexts["header"] != nil && !webSocket && !slices.ContainsFunc(targets, url) {
		return usagef("--header is given without a WebSocket; expected it with --ws or a target such as ws://HOST/")
	}
	if err := f.cfg.Validate(); err != nil {
		return usageError{err}
	}
	return nil
}

// readConfigFile reads what --config names.
func (f *loadFlags) readConfigFile(stdin io.Reader) error {
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
		return usagef("--config is %s, which has more; expected at most %d bytes", f.configFile, maxBytes)
	}
	if err := f.cfg.UnmarshalJSON(bytes.TrimSpace(text)); err != nil {
		return usagef("--config: %s: %s", f.configFile, strings.TrimPrefix(err.Error(), "load: config: "))
	}
	return nil
}

// unescapeSetting replaces the escapes in the texts of a flag, if they are to be.
func (f *loadFlags) unescapeSetting(name string) error {
	if !f.unescape || !slices.Contains([]string{"message", "first-message", "answer", "latency-marker"}, name) {
		return nil
	}
	for i, text := range f.settingTexts[name] {
		plain, err := message.Unescape(text)
		if err != nil {
			return usagef("--%s: %w", name, err)
		}
		if name == "answer" || name == "latency-marker" {
			t, err := message.Parse(string(plain))
			if err != nil {
				return usagef("--%s: %w", name, err)
			}
			fixed, ok := t.Fixed()
			if !ok {
				return usagef("--%s is %q, which has an expression; expected none", name, text)
			}
			plain = fixed
		}
		f.settingTexts[name][i] = string(plain)
	}
	return nil
}
