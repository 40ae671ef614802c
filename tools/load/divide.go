package load

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// MaxGenerators is the maximum number of generators in Config.Divide.
const MaxGenerators = 64

// Total returns the number of connections that the run opens. With a Ramp, the result is the final number of
// connections. With PubSub, the result includes the publishers and slow subscribers.
func (c Config) Total() int {
	c = c.withDefaultsAndImplied()
	return c.totalConns()
}

// Divide returns configurations for several generators that together produce the load of c. It returns one Config for
// each weight. There must be 1 to MaxGenerators weights, all above 0. A generator's share is proportional to its
// weight.
//
// The following numbers are divided: connections, the connect rate, a ramp, publishers, slow subscribers, and Check
// (the limit of lines in flight). The total rate of an open loop is divided in proportion to the connections. A rate
// for each connection does not change. All generators use the same topics; see PubSub.
//
// Connections have numbers that are unique among all generators. Usually, these numbers are consecutive. With a
// Lifetime, the numbers of each generator begin 1<<24 after those of the generator before, because replacements also
// need numbers.
//
// The number of connections must be at least the number of generators. This also applies to ConnectRate, Check and
// Publishers if they are set. A search (Goal) and a Steady run need a coordinator that evaluates the results of all
// generators; see Begin and Enough. If Sources are set, Divide returns an error, because the addresses belong to one
// machine.
func (c Config) Divide(weights ...float64) ([]Config, error) {
	if err := c.validateForGenerators(len(weights)); err != nil {
		return nil, err
	}
	parts := make([]Config, len(weights))
	for i := range parts {
		parts[i] = c
		if c.PubSub != nil {
			own := *c.PubSub
			parts[i].PubSub = &own
		}
	}
	filled := c.withDefaultsAndImplied()
	for _, d := range c.divisibleSettings(filled.Connections) {
		if d.total == 0 {
			continue
		}
		if d.total < d.min*len(weights) {
			return nil, &SettingError{d.name, fmt.Errorf("%d; expected %d or more, one for each generator", d.total, len(weights))}
		}
		for i, n := range apportion(d.total, d.min, weights) {
			*d.field(&parts[i]) = n
		}
	}
	from, publishers := 0, 0
	for i := range parts {
		p := &parts[i]
		p.Rate.PerSecond, p.Rate.To = c.Rate.PerSecond, c.Rate.To
		if !c.Rate.Each {
			share := float64(p.Connections) / float64(filled.Connections)
			p.Rate.PerSecond, p.Rate.To = c.Rate.PerSecond*share, c.Rate.To*share
		}
		if c.Ramp.To > 0 {
			p.Ramp.To = p.Connections
		}
		p.Ramp.From = min(p.Ramp.From, p.Connections)
		p.NumberFrom = c.NumberFrom + from
		if c.Lifetime > 0 {
			from += numbersPerGenerator
		} else {
			from += p.Connections
		}
		if c.PubSub != nil {
			p.PubSub.PublishersFrom = publishers
			publishers += max(p.PubSub.Publishers, 1)
			p.PubSub.AllPublishers = max(c.PubSub.Publishers, len(weights))
		}
		if err := p.Validate(); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

const numbersPerGenerator = 1 << 24

func (c Config) validateForGenerators(generators int) error {
	if len(c.Sources) > 0 {
		return &SettingError{"src", errors.New("given for several generators; expected no source addresses, because each generator has its own")}
	}
	if generators < 1 || generators > MaxGenerators {
		return fmt.Errorf("load: load divided among %d generators; expected 1 to %d", generators, MaxGenerators)
	}
	if c.Rate.Goal.Under > 0 && c.PubSub != nil {
		return &SettingError{"rate", fmt.Errorf("%q with --pubsub for several generators; expected a number of messages a second", c.Rate.Goal)}
	}
	return c.Validate()
}

type divisibleSetting struct {
	name       string
	total, min int
	field      func(*Config) *int
}

func (c *Config) divisibleSettings(connections int) []divisibleSetting {
	all := []divisibleSetting{
		{"connections", connections, 1, func(p *Config) *int { return &p.Connections }},
		{"connect-rate", c.ConnectRate, 1, func(p *Config) *int { return &p.ConnectRate }},
		{"ramp", c.Ramp.From, 0, func(p *Config) *int { return &p.Ramp.From }},
		{"check", c.Check, 1, func(p *Config) *int { return &p.Check }},
	}
	if c.PubSub != nil {
		all = append(all,
			divisibleSetting{"publishers", c.PubSub.Publishers, 1, func(p *Config) *int { return &p.PubSub.Publishers }},
			divisibleSetting{"slow", c.PubSub.Slow, 0, func(p *Config) *int { return &p.PubSub.Slow }})
	}
	return all
}

// apportion divides total in proportion to weights. The parts add up to total, and each is at least minEach.
func apportion(total, minEach int, weights []float64) []int {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	parts, rest := make([]int, len(weights)), make([]float64, len(weights))
	left := total
	for i, w := range weights {
		whole, fraction := math.Modf(float64(total) * w / sum)
		parts[i], rest[i] = int(whole), fraction
		left -= parts[i]
	}
	for ; left > 0; left-- {
		most := slices.Index(rest, slices.Max(rest))
		parts[most]++
		rest[most] = -1
	}
	for i := range parts {
		for ; parts[i] < minEach; parts[i]++ {
			parts[slices.Index(parts, slices.Max(parts))]--
		}
	}
	return parts
}
