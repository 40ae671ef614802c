// Package deploy has what runs servers in production: units of systemd, a Dockerfile, a Helm
// chart, alerts and a dashboard. docs/deploy.md tells of them. There is no code but the tests,
// which are a module of their own for what they need.
package deploy
