package installation

import "fmt"

// unitFile is where the unit is, and enabled the link that has systemd start it.
const (
	unitFile = "etc/systemd/system/" + unitName
	enabled  = "etc/systemd/system/multi-user.target.wants/" + unitName
	unitName = "itzo.service"
)

// unit is systemd's file of the agent, with where it has the user data from.
//
// An agent that ends, or is started again, leaves its pod alone: systemd signals the agent
// only, which ends its kubelet and containerd itself, and containers go on.
//
// Containers inherit the limits, which are those of Kip's image (limits in package machine).
func unit(userData string) string {
	return fmt.Sprintf(`# Written by itzo install. Changes belong into a drop-in: systemctl edit %s
[Unit]
Description=Kip's agent on a cell
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=/%s/itzo cell --user-data=%s
Restart=always
RestartSec=2
KillMode=process
Delegate=yes
OOMScoreAdjust=-999
LimitNOFILE=65536:1048576
LimitNPROC=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
`, unitName, binDir, userData)
}
