package integration

// acme is one account: Ann is an administrator who gets everything, Bob wants
// the motions of the doors only. Holds are the seconds of a test's patience.
const acme = `
accounts:
  - id: acme
    name: Acme
    timezone: Europe/Berlin
    active: true
    systemNotifications: true
    users:
      - {id: ann, name: Ann, email: ann@acme.test, enabled: true, admin: true, levels: [LOW, HIGH, SYSTEM]}
      - {id: bob, name: Bob, email: bob@acme.test, enabled: true, admin: false, levels: [HIGH]}
    sites: [{id: main, name: Main street}]
    devices:
      - {id: door, name: Front door, kind: CAMERA, site: main, regions: [{id: step, name: Step, level: HIGH, enabled: true}]}
      - {id: yard, name: Yard, kind: CAMERA, site: main}
      - {id: shop, name: Shop, kind: CAMERA, site: main}
`
